// What an op is told of the weight that the op behind it reads.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "ort/run_order.h"

namespace bertfuse::ort {
namespace {

const char session = 0, other_session = 0;
const Weight kFirst = {"first", 10}, kSecond = {"second", 20};

TEST(RunOrder, TellsFromTheSecondRunOnWhatTheNextOpReads) {
  const RunOrder first(&session), attention(&session), second(&session);
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(first.Enter(kFirst).data, nullptr);  // attention reads no weight
    EXPECT_EQ(attention.Enter({}).data, run == 0 ? nullptr : kSecond.data);
    EXPECT_EQ(second.Enter(kSecond).bytes, run == 0 ? 0 : kFirst.bytes);  // that of the next run's first op
  }
}

TEST(RunOrder, IsNeverToldOfAnotherSessionsWeights) {
  const RunOrder last(&session), first(&other_session), unknown(nullptr);
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(last.Enter(kFirst).data, nullptr);
    EXPECT_EQ(first.Enter(kSecond).data, nullptr);
    EXPECT_EQ(unknown.Enter(kFirst).data, nullptr);
    EXPECT_EQ(unknown.Enter(kFirst).data, nullptr);
  }
}

TEST(RunOrder, FollowsEachThreadsRun) {
  const RunOrder first(&session), second(&session);
  first.Enter(kFirst), second.Enter(kSecond);
  std::thread([&] {  // another run, which has only begun
    EXPECT_EQ(second.Enter(kSecond).data, nullptr);
    EXPECT_EQ(first.Enter(kFirst).data, kSecond.data);
  })
      .join();
  EXPECT_EQ(first.Enter(kFirst).data, kSecond.data);
}

TEST(RunOrder, OutlivesAnOpThatRanBefore) {
  const RunOrder second(&session);
  for (int i = 0; i < 3; ++i) {
    const auto first = std::make_unique<RunOrder>(&session);
    EXPECT_EQ(first->Enter(kFirst).data, nullptr);
    if (i == 1) second.Enter(kSecond);
  }
  second.Enter(kSecond);
}

}  // namespace
}  // namespace bertfuse::ort
