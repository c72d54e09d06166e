#include <gtest/gtest.h>

#include <set>

#include "base/config_path.h"
#include "hw/links.h"
#include "hw/system.h"

namespace penstock::hw {
namespace {

constexpr std::string_view kGood = R"(
[device]
name = "d"
memory_bytes = 80e9
memory_bandwidth_bytes_per_s = 2e12
peak_flops_per_s = { bf16 = 300e12, fp8 = 600e12 }
[[link]]
name = "node"
span_devices = 8
latency_s = 1e-6
bandwidth_bytes_per_s = 300e9
[[link]]
name = "net"
latency_s = 1e-5
bandwidth_bytes_per_s = 25e9
)";

Result<System> Parse(const std::string& text) {
  auto table = ParseToml(text, "x.toml");
  EXPECT_TRUE(table.ok());
  return ParseSystem(table.value(), "x");
}

std::string Replace(std::string_view from, std::string_view to) {
  std::string text(kGood);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(System, EveryNamedSystemReadsAndSaysWhereItsFiguresComeFrom) {
  const std::vector<std::string> names = ConfigNames("systems", "toml");
  for (const char* wanted :
       {"dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72",
        "mi300x", "h800", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "rtx-4090", "rtx-5090",
        "mac-studio-m3-ultra", "cpu-host"}) {
    EXPECT_TRUE(std::find(names.begin(), names.end(), wanted) != names.end()) << wanted;
  }
  for (const std::string& name : names) {
    const auto system = ReadSystem(name);
    ASSERT_TRUE(system.ok()) << system.error().message;
    EXPECT_GT(system->device.source.size(), 20u) << name;
    EXPECT_FALSE(system->price_source.empty()) << name;
    EXPECT_GT(system->price_usd_per_device_hour, 0) << name;
    EXPECT_GT(system->host_memory_bytes, 0) << name;
    EXPECT_FALSE(system->host_source.empty()) << name;
    const bool unpublished =
        system->device.source.find("power is not published") != std::string::npos;
    EXPECT_EQ(system->device.power_w == 0, unpublished) << name;
    for (const Calibration* c : {&system->inference, &system->training}) {
      EXPECT_TRUE(!c->fitted_on.empty() || c->source.starts_with("assumed")) << name;
    }
    EXPECT_FALSE(system->inference.source.empty()) << name;
    EXPECT_FALSE(system->training.source.empty()) << name;
    for (const LinkLevel& link : system->links) {
      EXPECT_FALSE(link.source.empty()) << name << " " << link.name;
    }
    EXPECT_GT(system->device.usable_bytes(), 0.8 * system->device.memory_bytes) << name;
  }
}

TEST(System, AnUnknownKeyNamesFileLineAndTheNearestKnownKey) {
  const auto system = Parse(Replace("latency_s = 1e-6", "latency_us = 1"));
  ASSERT_FALSE(system.ok());
  EXPECT_NE(system.error().message.find("x.toml:"), std::string::npos) << system.error().message;
  const auto typo =
      Parse(Replace("span_devices = 8", "span_devices = 8\nbandwith_bytes_per_s = 3"));
  ASSERT_FALSE(typo.ok());
  EXPECT_NE(typo.error().message.find("x.toml:10: link.bandwith_bytes_per_s"), std::string::npos)
      << typo.error().message;
  EXPECT_NE(typo.error().message.find("'bandwidth_bytes_per_s'?"), std::string::npos)
      << typo.error().message;
}

TEST(System, AKeyWithoutItsUnitOrWithAnotherSaysWhichIsMeant) {
  for (const std::string key : {"memory_bandwidth", "memory_bandwidth_gb_per_s"}) {
    const auto system = Parse(Replace("memory_bandwidth_bytes_per_s", key));
    ASSERT_FALSE(system.ok());
    EXPECT_NE(system.error().message.find("device.memory_bandwidth_bytes_per_s: got nothing"),
              std::string::npos)
        << system.error().message;
    EXPECT_NE(system.error().message.find("is '" + key + "' on line 5 meant?"), std::string::npos)
        << system.error().message;
  }
}

TEST(System, RefusesFiguresThatCannotBe) {
  EXPECT_TRUE(Parse(std::string(kGood)).ok());
  EXPECT_FALSE(Parse(Replace("memory_bytes = 80e9", "memory_bytes = -1")).ok());
  EXPECT_FALSE(Parse(Replace("memory_bytes = 80e9", "memory_bytes = \"80 GB\"")).ok());
  EXPECT_FALSE(
      Parse(Replace("memory_bytes = 80e9", "memory_bytes = 80e9\nmemory_reserve_bytes = 90e9"))
          .ok());
  EXPECT_FALSE(Parse(Replace("fp8 = 600e12", "fp9 = 600e12")).ok());
  EXPECT_FALSE(Parse(Replace("latency_s = 1e-6", "latency_s = 8")).ok());  // microseconds
  EXPECT_FALSE(Parse(Replace("fp8 = 600e12", "fp8 = inf")).ok());
  EXPECT_FALSE(Parse(Replace("span_devices = 8\n", "")).ok());
  EXPECT_FALSE(Parse(std::string(kGood) + "[training]\nmatrix_efficiency = 1.5\n").ok());
}

TEST(System, SoftwareMayKeepMoreFreeThanTheDevice) {
  System system = Parse(std::string(kGood) + "[inference]\nmemory_reserve_bytes = 9e9\n").value();
  EXPECT_EQ(system.device.memory_reserve_bytes, 4e9);  // a twentieth
  system.TakeReserve(system.training);
  EXPECT_EQ(system.device.memory_reserve_bytes, 4e9);
  system.TakeReserve(system.inference);
  EXPECT_EQ(system.device.memory_reserve_bytes, 9e9);
  const auto more = Parse(std::string(kGood) + "[training]\nmemory_reserve_bytes = 90e9\n");
  ASSERT_FALSE(more.ok());
  EXPECT_NE(more.error().message.find("x.toml:17: training.memory_reserve_bytes"),
            std::string::npos)
      << more.error().message;
}

TEST(System, ANameThatDoesNotExistListsTheNearOnes) {
  const auto system = ReadSystem("dgx-h10");
  ASSERT_FALSE(system.ok());
  EXPECT_NE(system.error().message.find("dgx-h100"), std::string::npos) << system.error().message;
}

TEST(Device, MultipliesAtTheRateOfTheTypeThatWeightsAreWidenedTo) {
  const System s = Parse(std::string(kGood)).value();
  EXPECT_EQ(s.device.Rate(Precision::kFp8).second, 600e12);
  EXPECT_EQ(s.device.Rate(Precision::kFp4).second, 600e12);
  EXPECT_EQ(s.device.Rate(Precision::kInt4).second, 300e12);
  EXPECT_EQ(s.device.Rate(Precision::kInt4).first, Precision::kBf16);
}

TEST(Links, UseTheInnermostLevelThatJoinsTheGroup) {
  const System s = Parse(std::string(kGood)).value();
  EXPECT_DOUBLE_EQ(MessageSeconds(s, 7, 300e3), 1e-6 + 1e-6);
  EXPECT_DOUBLE_EQ(MessageSeconds(s, 8, 25e3), 1e-5 + 1e-6);
  EXPECT_EQ(MessageSeconds(s, 0, 25e3), 0);
  EXPECT_EQ(AllReduceSeconds(s, {1, 1}, 1e9), 0);
}

TEST(Links, AnAllReduceOverSeveralNodesCrossesTheNetWithAShareOfTheBytes) {
  const System s = Parse(std::string(kGood)).value();
  const double bytes = 8e9;
  const double inside = 2 * 7.0 / 8 * bytes / 300e9;
  const double across = 2 * 3.0 / 4 * (bytes / 8) / 25e9;
  EXPECT_NEAR(AllReduceSeconds(s, {32, 1}, bytes), inside + across, 2e-4);
  // Members that are a node apart share no inner link.
  EXPECT_NEAR(AllReduceSeconds(s, {4, 8}, bytes), 2 * 3.0 / 4 * bytes / 25e9, 2e-4);
}

TEST(Curve, IsStraightBetweenItsPointsAndRefusesDisorder) {
  const Curve c = Curve::Make({{0, 1}, {10, 3}}, Curve::Scale::kLinear, "x").value();
  EXPECT_DOUBLE_EQ(c.At(5), 2);
  EXPECT_DOUBLE_EQ(c.At(20), 5);
  EXPECT_DOUBLE_EQ(c.At(-1), 1);
  const Curve l = Curve::Make({{1, 0.1}, {100, 0.9}}, Curve::Scale::kLogX, "x").value();
  EXPECT_DOUBLE_EQ(l.At(10), 0.5);
  EXPECT_DOUBLE_EQ(l.At(1e9), 0.9);
  EXPECT_FALSE(Curve::Make({{1, 0}, {1, 1}}, Curve::Scale::kLinear, "x").ok());
  EXPECT_FALSE(Curve::Make({{0, 0}, {1, 1}}, Curve::Scale::kLogX, "x").ok());
}

TEST(Precision, RoundTripsAndSuggests) {
  for (const Precision p : kPrecisions) {
    EXPECT_EQ(ParsePrecision(PrecisionName(p)).value(), p);
  }
  EXPECT_NE(ParsePrecision("bf61").error().message.find("'bf16'?"), std::string::npos);
}

}  // namespace
}  // namespace penstock::hw
