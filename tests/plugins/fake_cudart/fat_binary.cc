#include "fat_binary.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace fake_cudart {
namespace {

// The layout that nvcc's fatbinary tool writes; NVIDIA documents none of it. What does not look like this is left out.
struct Wrapper {
  uint32_t magic, version;
  const void* data;
  const void* more;
};
struct Header {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct Entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes, options;
  uint16_t minor, major;
  uint32_t architecture;
};
constexpr uint32_t kWrapperMagic = 0x466243b1, kHeaderMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1, kElf = 2;

// Attributes in .nv.info, as cuobjdump -elf names them: EIATTR_MAX_THREADS, _FRAME_SIZE, _KPARAM_INFO, _REGCOUNT. Each
// has a format, a kind, and either two bytes or, in format kSized, that many bytes behind their number.
constexpr uint8_t kSized = 4, kMaxThreads = 0x05, kFrame = 0x11, kParameter = 0x17, kRegisters = 0x2f;

template <class T>
T Read(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <class Visit>
void ForEachAttribute(const uint8_t* at, size_t bytes, Visit&& visit) {
  const uint8_t* end = at + bytes;
  while (at + 4 <= end) {
    const uint8_t format = at[0], kind = at[1];
    const uint16_t size = Read<uint16_t>(at + 2);
    at += 4;
    if (format != kSized) continue;
    visit(kind, at, size);
    at += size;
  }
}

std::map<std::string, Kernel> ReadElf(const uint8_t* elf) {
  std::map<std::string, Kernel> kernels;
  if (std::memcmp(elf, ELFMAG, SELFMAG) != 0) return kernels;
  const auto header = Read<Elf64_Ehdr>(elf);
  // From 9.0 on the section begins with what the system reserves for each block, and is not the kernel's.
  const int reserved = (header.e_flags >> 8 & 0xff) >= 90 ? 1 << 10 : 0;
  const auto section = [&](size_t i) { return Read<Elf64_Shdr>(elf + header.e_shoff + i * header.e_shentsize); };
  const char* names = reinterpret_cast<const char*>(elf + section(header.e_shstrndx).sh_offset);
  const uint8_t* symbols = nullptr;
  const char* symbol_names = nullptr;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    if (section(i).sh_type != SHT_SYMTAB) continue;
    symbols = elf + section(i).sh_offset;
    symbol_names = reinterpret_cast<const char*>(elf + section(section(i).sh_link).sh_offset);
  }
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr s = section(i);
    const std::string name = names + s.sh_name;
    const auto suffix = [&](const char* prefix) {
      return name.rfind(prefix, 0) == 0 ? name.substr(std::strlen(prefix)) : std::string();
    };
    if (const std::string kernel = suffix(".nv.shared."); !kernel.empty()) {
      kernels[kernel].static_shared = std::max(static_cast<int>(s.sh_size) - reserved, 0);
    } else if (name == ".nv.info" && symbols != nullptr) {
      ForEachAttribute(elf + s.sh_offset, s.sh_size, [&](uint8_t kind, const uint8_t* at, uint16_t) {
        if (kind != kRegisters && kind != kFrame) return;
        const auto symbol = Read<Elf64_Sym>(symbols + Read<uint32_t>(at) * sizeof(Elf64_Sym));
        Kernel& facts = kernels[symbol_names + symbol.st_name];
        (kind == kFrame ? facts.frame_bytes : facts.registers) = Read<int32_t>(at + 4);
      });
    } else if (const std::string named = suffix(".nv.info."); !named.empty()) {
      Kernel& facts = kernels[named];
      facts.has_parameters = true;
      ForEachAttribute(elf + s.sh_offset, s.sh_size, [&](uint8_t kind, const uint8_t* at, uint16_t) {
        if (kind == kMaxThreads) {
          facts.max_threads = Read<int32_t>(at) * Read<int32_t>(at + 4) * Read<int32_t>(at + 8);
        } else if (kind == kParameter) {
          const size_t ordinal = Read<uint16_t>(at + 4);
          if (facts.parameters.size() <= ordinal) facts.parameters.resize(ordinal + 1);
          facts.parameters[ordinal] = {Read<uint16_t>(at + 6), static_cast<int>(Read<uint32_t>(at + 8) >> 18)};
        }
      });
    }
  }
  return kernels;
}

}  // namespace

std::vector<Image> ReadFatBinary(const void* wrapper) {
  std::vector<Image> images;
  const auto outer = Read<Wrapper>(static_cast<const uint8_t*>(wrapper));
  if (outer.magic != kWrapperMagic) return images;
  const auto* at = static_cast<const uint8_t*>(outer.data);
  const auto header = Read<Header>(at);
  if (header.magic != kHeaderMagic) return images;
  const uint8_t* end = at + header.header_bytes + header.bytes;
  for (at += header.header_bytes; at < end;) {
    const auto entry = Read<Entry>(at);
    Image image = {static_cast<int>(entry.architecture), entry.kind == kPtx, {}};
    if (entry.kind == kElf && entry.compressed_bytes == 0) image.kernels = ReadElf(at + entry.header_bytes);
    if (entry.kind == kElf || entry.kind == kPtx) images.push_back(std::move(image));
    at += entry.header_bytes + entry.bytes;
  }
  return images;
}

const Image* ImageFor(const std::vector<Image>& images, int compute_capability) {
  const Image* best = nullptr;
  for (const Image& image : images) {
    const bool runs = image.architecture <= compute_capability &&
                      (image.is_ptx || image.architecture / 10 == compute_capability / 10);
    const auto rank = [](const Image& i) { return (i.is_ptx ? 0 : 1000) + i.architecture; };
    if (runs && (best == nullptr || rank(image) > rank(*best))) best = &image;
  }
  return best;
}

}  // namespace fake_cudart
