// Committed schedules, one per generator: a change of an order shows as a difference of files.
// PENSTOCK_UPDATE_GOLDEN=1 rewrites them (and then the test fails, so that nobody leaves it on).

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "schedule/passes.h"
#include "schedule/registry.h"
#include "schedule/text/text.h"
#include "schedule/validate.h"

namespace penstock::schedule {
namespace {

std::string PathOf(std::string_view file) {
  return fmt::format("{}/tests/golden/schedules/{}", PENSTOCK_SOURCE_DIR, file);
}

void Compare(const std::string& file, const std::string& text) {
  if (std::getenv("PENSTOCK_UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(WriteFileAtomically(PathOf(file), text).ok());
    ADD_FAILURE() << file << " rewritten";
    return;
  }
  const auto golden = ReadFile(PathOf(file));
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  ASSERT_EQ(golden.value().size(), text.size()) << file;
  ASSERT_EQ(golden.value(), text) << file;
}

TEST(Golden, EveryGeneratorWritesItsCommittedSchedule) {
  for (const GeneratorInfo& info : Generators()) {
    const Schedule s = Generate(info.name, {4, 8, 0, 0}).value();
    Compare(fmt::format("{}_p4_m8.schedule", info.name),
            fmt::format("# penstock schedule {} -p 4 -m 8\n{}", info.name, WriteNative(s)));
  }
}

TEST(Golden, LoweredSchedulesAreTheCommittedOnes) {
  for (const char* name : {"1f1b", "zb-v", "dualpipe", "interleaved-1f1b"}) {
    const Schedule s = AddCommunication(Generate(name, {4, 8, 0, 0}).value()).value();
    Compare(fmt::format("{}_p4_m8_lowered.schedule", name),
            fmt::format("# penstock schedule {} -p 4 -m 8 --lowered\n{}", name, WriteNative(s)));
  }
}

TEST(Golden, PytorchDialectsAreTheCommittedOnes) {
  for (const Dialect dialect : {Dialect::kBw, Dialect::kPlain, Dialect::kWait}) {
    const Schedule s = AddCommunication(Generate("zb-h1", {3, 4, 0, 0}).value()).value();
    Compare(fmt::format("zb-h1_p3_m4_lowered_{}.csv", DialectText(dialect)),
            WriteCsv(s, dialect).value());
  }
}

TEST(Golden, CommittedFilesPassTheProof) {
  for (const GeneratorInfo& info : Generators()) {
    const auto read = ReadScheduleFile(PathOf(fmt::format("{}_p4_m8.schedule", info.name)));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_TRUE(Validate(read.value().schedule).ok()) << info.name;
  }
}

}  // namespace
}  // namespace penstock::schedule
