// Bulk tensor copies: tensor maps as the driver encodes them, and what TMA does with them.
#include <algorithm>
#include <cstring>

#include "emulator/hopper.h"
#include "emulator/state.h"

namespace emulator {
namespace {

constexpr uint32_t kMagic = 0x70616d54u;
constexpr int kMaxRank = 5, kSharedAlignment = 128;

// What is in a CUtensorMap here.
struct Map {
  uint32_t magic;
  uint8_t rank, element_bytes, swizzle_chunks;  // swizzled over 2, 4 or 8 chunks of 16 bytes; 1: not at all
  char* data;
  uint64_t sizes[kMaxRank];    // in elements
  uint64_t strides[kMaxRank];  // in bytes
  uint16_t box[kMaxRank];

  uint32_t RowBytes() const { return box[0] * element_bytes; }
  uint32_t Rows() const {
    uint32_t rows = 1;
    for (int i = 1; i < rank; ++i) rows *= box[i];
    return rows;
  }
  uint32_t Bytes() const { return Rows() * RowBytes(); }
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

int BytesOf(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return 4;
    default:
      return 0;
  }
}

Map Read(const CUtensorMap* map, const char* name) {
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0) Fault(std::string(name) + ": a misaligned tensor map");
  Map read;
  std::memcpy(static_cast<void*>(&read), map, sizeof(read));
  if (read.magic != kMagic) Fault(std::string(name) + ": no tensor map");
  return read;
}

// One box of a tensor: where it is in global memory, and in which shared memory.
struct Box {
  Map map;
  int at[kMaxRank];
  uint32_t shared;
};

// Calls move(chunk of 16 bytes in shared memory, global address of its first element or null, bytes inside of the
// tensor, bytes before them).
template <class Move>
void ForEachChunk(const Box& box, const char* name, Move&& move) {
  const Map& map = box.map;
  const uint32_t rows = map.Rows(), row_bytes = map.RowBytes();
  const int64_t size = static_cast<int64_t>(map.sizes[0]) * map.element_bytes;
  for (uint32_t row = 0; row < rows; ++row) {
    char* global = map.data;
    bool inside = true;
    uint32_t rest = row;
    for (int i = 1; i < map.rank; ++i) {
      const int64_t at = box.at[i] + static_cast<int64_t>(rest % map.box[i]);
      rest /= map.box[i];
      inside &= at >= 0 && at < static_cast<int64_t>(map.sizes[i]);
      global += at * static_cast<int64_t>(map.strides[i]);
    }
    const int64_t first = static_cast<int64_t>(box.at[0]) * map.element_bytes;
    const int64_t begin = std::max<int64_t>(first, 0), end = std::min<int64_t>(first + row_bytes, size);
    if (inside && begin < end && !IsAccessible(global + begin, end - begin)) {
      Fault(std::string(name) + ": outside of an array in global memory");
    }
    for (uint32_t byte = 0; byte < row_bytes; byte += 16) {
      uint32_t to = box.shared + row * row_bytes + byte;
      to ^= (to >> 7 & (map.swizzle_chunks - 1)) << 4;
      const int64_t from = std::clamp<int64_t>(first + byte, begin, std::max(begin, end));
      const int64_t until = std::clamp<int64_t>(first + byte + 16, begin, std::max(begin, end));
      const bool any = inside && from < until;
      move(to, any ? global + from : nullptr, any ? until - from : 0, any ? from - (first + byte) : 0);
    }
  }
}

Box MakeBox(const CUtensorMap* map, const void* shared, int rank, const int* at, const char* name) {
  Box box;
  box.map = Read(map, name);
  if (box.map.rank != rank) Fault(std::string(name) + ": the map has " + std::to_string(box.map.rank) + " dimensions");
  std::copy(at, at + rank, box.at);
  box.shared = SharedAddress(shared);
  return box;
}

void Load(Block& block, const Box& box, uint32_t barrier, const std::string& who) {
  if (HasEnded(block)) Fault("a TMA load by " + who + " arrives in a block that has ended");
  ForEachChunk(box, "TMA load", [&](uint32_t to, const char* from, int64_t bytes, int64_t before) {
    char* const chunk = SharedPointer(block, to, 16, 16, "TMA load");
    std::memset(chunk, 0, 16);
    if (bytes > 0) std::memcpy(chunk + before, from, bytes);
  });
  CompleteTransactions(block, barrier, box.map.Bytes());
}

// The box's bytes, in the order of ForEachChunk().
std::vector<char> ReadShared(Block& block, const Box& box, const std::string& who) {
  if (HasEnded(block)) Fault("a TMA store by " + who + " reads from a block that has ended");
  std::vector<char> bytes;
  ForEachChunk(box, "TMA store", [&](uint32_t from, char*, int64_t, int64_t) {
    const char* const chunk = SharedPointer(block, from, 16, 16, "TMA store");
    bytes.insert(bytes.end(), chunk, chunk + 16);
  });
  return bytes;
}

void WriteGlobal(const Box& box, const std::vector<char>& bytes) {
  const char* chunk = bytes.data();
  ForEachChunk(box, "TMA store", [&](uint32_t, char* to, int64_t count, int64_t before) {
    if (count > 0) std::memcpy(to, chunk + before, count);
    chunk += 16;
  });
}

}  // namespace

CUresult EncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* sizes,
                     const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* element_strides,
                     CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                     CUtensorMapFloatOOBfill fill) {
  const int element_bytes = BytesOf(type);
  if (rank < 1 || rank > kMaxRank || element_bytes == 0 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || reinterpret_cast<uintptr_t>(data) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(map) % 64 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Map made = {};
  made.magic = kMagic, made.rank = static_cast<uint8_t>(rank), made.data = static_cast<char*>(data);
  made.element_bytes = static_cast<uint8_t>(element_bytes);
  made.swizzle_chunks = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 8
                        : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 4
                        : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 2
                                                               : 1;
  for (cuuint32_t i = 0; i < rank; ++i) {
    const bool good = sizes[i] >= 1 && sizes[i] <= uint64_t{1} << 32 && box[i] >= 1 && box[i] <= 256 &&
                      element_strides[i] == 1 &&
                      (i == 0 || (strides[i - 1] % 16 == 0 && strides[i - 1] < uint64_t{1} << 40));
    if (!good) return CUDA_ERROR_INVALID_VALUE;
    made.sizes[i] = sizes[i], made.strides[i] = i == 0 ? 0 : strides[i - 1];
    made.box[i] = static_cast<uint16_t>(box[i]);
  }
  // Narrower boxes than what is swizzled over have gaps in shared memory, which are not modelled.
  const uint32_t row = made.RowBytes();
  if (row % 16 != 0 || (made.swizzle_chunks > 1 && row != 16u * made.swizzle_chunks)) return CUDA_ERROR_INVALID_VALUE;
  std::memset(static_cast<void*>(map), 0, sizeof(*map));
  std::memcpy(static_cast<void*>(map), &made, sizeof(made));
  return CUDA_SUCCESS;
}

void PrefetchTensorMap(const CUtensorMap* map) { Read(map, "prefetch.tensormap"); }

void TmaLoad(void* shared, const CUtensorMap* map, int rank, const int* at, uint64_t* barrier, uint32_t blocks) {
  Machine& m = The();
  const Box box = MakeBox(map, shared, rank, at, "TMA load");
  const uint32_t full = SharedAddress(barrier);
  const std::string who = NameOf(*m.current);
  if (blocks == 0) blocks = 1u << m.current->block->rank;
  if (blocks >> m.blocks.size() != 0) Fault("TMA load: to blocks that are not in the cluster");
  for (Block& block : m.blocks) {
    if ((blocks >> block.rank & 1) == 0) continue;
    if (HasEnded(block)) Fault("TMA load: to a block that has ended");
    m.copies += box.map.Bytes() / 16;
    BarrierAt(block, full, "TMA load");
    std::memset(SharedPointer(block, box.shared, box.map.Bytes(), kSharedAlignment, "TMA load"), kPoison,
                box.map.Bytes());
    Begin(Async::kLoad, [&block, box, full, who] { Load(block, box, full, who); });
  }
}

void TmaStore(const CUtensorMap* map, const void* shared, int rank, const int* at) {
  Thread& thread = *The().current;
  Block& block = *thread.block;
  const Box box = MakeBox(map, shared, rank, at, "TMA store");
  SharedPointer(block, box.shared, box.map.Bytes(), kSharedAlignment, "TMA store");
  CheckFenced(block, box.shared, box.map.Bytes(), "TMA store");
  if (thread.open_stores == nullptr) thread.open_stores = std::make_shared<StoreGroup>();
  const auto group = thread.open_stores;
  ++group->reads, ++group->writes;
  Begin(Async::kStore, [&block, &thread, box, group, who = NameOf(thread)] {
    auto bytes = std::make_shared<std::vector<char>>(ReadShared(block, box, who));
    --group->reads;
    if (thread.waits_for != nullptr && std::strncmp(thread.waits_for, "cp.async.bulk", 13) == 0) Wake(&thread);
    Begin(Async::kStore, [&thread, box, group, bytes] {
      WriteGlobal(box, *bytes);
      --group->writes;
      if (thread.waits_for != nullptr && std::strncmp(thread.waits_for, "cp.async.bulk", 13) == 0) Wake(&thread);
    });
  });
}

void CommitStores() {
  Thread& thread = *The().current;
  thread.stores.push_back(thread.open_stores == nullptr ? std::make_shared<StoreGroup>() : thread.open_stores);
  thread.open_stores = nullptr;
}

void WaitStores(int pending, bool read_only) {
  Thread& thread = *The().current;
  const size_t pending_groups = static_cast<size_t>(pending);
  const size_t finished = thread.stores.size() > pending_groups ? thread.stores.size() - pending_groups : 0;
  for (size_t i = 0; i < finished; ++i) {
    const auto group = thread.stores[i];
    while (group->reads > 0 || (!read_only && group->writes > 0)) {
      Wait(read_only ? "cp.async.bulk.wait_group.read" : "cp.async.bulk.wait_group");
    }
    group->waited_for = true;
  }
  while (!thread.stores.empty() && thread.stores.front()->waited_for && thread.stores.front()->writes == 0) {
    thread.stores.pop_front();
  }
}

}  // namespace emulator
