// The kernels inside an object's GPU code, as its ELF images describe them.
#ifndef BERTFUSE_TESTS_PLUGINS_FAKE_CUDART_FAT_BINARY_H_
#define BERTFUSE_TESTS_PLUGINS_FAKE_CUDART_FAT_BINARY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fake_cudart {

struct Kernel {
  int registers = 0;
  int frame_bytes = 0;  // of memory for each thread: what did not fit its registers, and arrays that are indexed
  int static_shared = 0;
  int max_threads = 1024;
  bool has_parameters = false;  // known: PTX and compressed images are not read
  struct Parameter {
    int offset, size;
  };
  std::vector<Parameter> parameters;
};

struct Image {
  int architecture;  // 90 for 9.0
  bool is_ptx;
  std::map<std::string, Kernel> kernels;  // by mangled name; empty where the image was not read
};

// The images of a fat binary, as __cudaRegisterFatBinary() gets it.
std::vector<Image> ReadFatBinary(const void* wrapper);

// The one that a device of that compute capability runs, or null: machine code of the same generation that is not newer
// comes before PTX.
const Image* ImageFor(const std::vector<Image>& images, int compute_capability);

}  // namespace fake_cudart
#endif  // BERTFUSE_TESTS_PLUGINS_FAKE_CUDART_FAT_BINARY_H_
