// Which weight the op reads that runs next: known from the session's runs before.
#ifndef BERTFUSE_ORT_RUN_ORDER_H_
#define BERTFUSE_ORT_RUN_ORDER_H_

#include <cstddef>
#include <memory>
#include <mutex>

namespace bertfuse::ort {

struct Weight {
  const void* data = nullptr;
  size_t bytes = 0;
};

// One op's place among those of its session. ONNX Runtime runs a session's nodes one after the other on the thread of
// the run, in the same order each time. A session's weights live as long as its ops, and as the CUDA graphs that were
// captured of their launches; so an op is told of its own session's weights alone.
class RunOrder {
 public:
  // `session`: the same for all ops of a session, and for no other session's that lives at the same time; null where
  // that is not known.
  explicit RunOrder(const void* session) : place_(std::make_shared<Place>()) { place_->session = session; }

  // Called by each op in turn, before its launches, with the weight that it reads, if any. Returns what the op behind
  // it read when it last ran; nothing where that read no weight, or was none of the session's.
  Weight Enter(const Weight& mine) const;

 private:
  struct Place {
    const void* session = nullptr;
    std::mutex mutex;
    Weight next;
  };
  std::shared_ptr<Place> place_;
};

}  // namespace bertfuse::ort
#endif  // BERTFUSE_ORT_RUN_ORDER_H_
