#include "ort/run_order.h"

namespace bertfuse::ort {

Weight RunOrder::Enter(const Weight& mine) const {
  if (place_->session == nullptr) return {};
  thread_local std::shared_ptr<Place> before;  // of this thread's last op, which may have been destroyed since
  if (before != nullptr && before->session == place_->session) {
    const std::lock_guard<std::mutex> lock(before->mutex);
    before->next = mine;
  }
  before = place_;
  const std::lock_guard<std::mutex> lock(place_->mutex);
  return place_->next;
}

}  // namespace bertfuse::ort
