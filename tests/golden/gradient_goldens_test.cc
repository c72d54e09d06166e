// Gradients of the tiny models of tests/golden/models against PyTorch in float64, through
// `penstock gradients`: every folder and every GGUF twin; and the same bytes from any schedule, in
// threads and under MPI.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "support/process.h"
#include "weights/safetensors.h"

namespace penstock::testing {
namespace {

// Of the L2 norm of a gradient's error to that of the gradient, unless the golden says otherwise.
constexpr double kLimit = 1e-5;

const std::string kTests = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/";

struct Source {
  std::string name;
  std::string model;
  std::string golden;
};

void PrintTo(const Source& source, std::ostream* out) {
  *out << source.model;
}

std::vector<Source> Sources() {
  std::vector<Source> out;
  for (const auto& entry : std::filesystem::directory_iterator(kTests + "gradients")) {
    const std::string name = entry.path().stem().string();
    out.push_back({name, kTests + "models/" + name, entry.path().string()});
    const std::string twin = kTests + "models/gguf/" + name + ".gguf";
    auto golden = ReadJsonFile(entry.path().string());
    if (FileExists(twin) && golden.ok() && golden.value().value("gguf", true)) {
      out.push_back({name + "_gguf", twin, entry.path().string()});
    }
  }
  std::sort(out.begin(), out.end(),
            [](const Source& a, const Source& b) { return a.name < b.name; });
  return out;
}

std::string Tokens(const Json& sequences) {
  std::string text;
  for (const Json& sequence : sequences) {
    text += text.empty() ? "" : ";";
    bool first = true;
    for (const Json& id : sequence) {
      text += (first ? "" : ",") + std::to_string(id.get<int64_t>());
      first = false;
    }
  }
  return text;
}

// SplitMix64's finalizer; tools/make_gradient_goldens.py has the same.
uint64_t Mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

double Product(const std::vector<float>& x, uint64_t number) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const uint64_t bits = Mixed(i + (number << 40)) >> 11;
    sum += (std::ldexp(static_cast<double>(bits), -52) - 1.0) * static_cast<double>(x[i]);
  }
  return sum;
}

// The tensors of a file, by name.
std::map<std::string, std::vector<float>> ReadGradients(const std::string& path) {
  std::map<std::string, std::vector<float>> out;
  auto text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.error().message;
  if (!text.ok()) {
    return out;
  }
  auto header = weights::ParseSafetensors(std::as_bytes(std::span<const char>(text.value())), path);
  EXPECT_TRUE(header.ok()) << header.error().message;
  if (!header.ok()) {
    return out;
  }
  for (const weights::StoredTensor& tensor : header.value().tensors) {
    std::vector<float>& values = out[tensor.name];
    values.resize(static_cast<size_t>(tensor.elements));
    std::memcpy(values.data(), text.value().data() + tensor.offset, tensor.bytes);
  }
  return out;
}

class GradientGoldens : public ::testing::TestWithParam<Source> {
 protected:
  const TemporaryFolder folder_;
};

TEST_P(GradientGoldens, GradientsInFloat32AgreeWithFloat64) {
  auto golden = ReadJsonFile(GetParam().golden);
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  const std::string path = folder_.path() + "/gradients.safetensors";
  const std::vector<std::string> arguments = {"gradients",
                                              "-m",
                                              GetParam().model,
                                              "--tokens",
                                              Tokens(golden.value()["tokens"]),
                                              "--stages",
                                              "2",
                                              "--micro-batches",
                                              "2",
                                              "--schedule",
                                              "zb-h1",
                                              "-o",
                                              path,
                                              "--json"};
  const Finished done = RunPenstock(arguments);
  ASSERT_EQ(done.status, 0) << Describe(arguments) << "\n" << done.err;
  auto said = ParseJson(done.out, "standard output");
  ASSERT_TRUE(said.ok()) << said.error().message;
  const double loss = golden.value()["loss"].get<double>();
  EXPECT_NEAR(said.value()["loss"].get<double>(), loss, std::max(2e-5, 1e-5 * loss));
  const auto gradients = ReadGradients(path);
  const Json& wanted = golden.value()["gradients"];
  EXPECT_EQ(gradients.size(), wanted.size());
  const double limit = golden.value().value("limit", kLimit);
  double worst = 0;
  for (const auto& [name, fingerprint] : wanted.items()) {
    const auto it = gradients.find(name);
    ASSERT_NE(it, gradients.end()) << name;
    // Numbers in [-1, 1) have variance 1/3.
    double squares = 0;
    uint64_t number = 0;
    for (const Json& projection : fingerprint["projections"]) {
      const double off = Product(it->second, number++) - projection.get<double>();
      squares += 3 * off * off;
    }
    const double norm = fingerprint["norm"].get<double>();
    const double error = std::sqrt(squares / static_cast<double>(number));
    EXPECT_LE(error, limit * norm) << name << ", norm " << norm;
    worst = norm > 0 ? std::max(worst, error / norm) : worst;
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
}

INSTANTIATE_TEST_SUITE_P(Tiny, GradientGoldens, ::testing::ValuesIn(Sources()),
                         [](const auto& source) {
                           std::string name = source.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The same sequences through other schedules and transports.
TEST(GradientBytes, AnyScheduleAndTransportWritesTheSameFile) {
  const TemporaryFolder folder;
  const std::string model = kTests + "models/smollm2";
  const auto run = [&](const std::vector<std::string>& flags, int ranks) {
    const std::string path = folder.path() + "/g.safetensors";
    std::vector<std::string> arguments = {
        "gradients", "-m", model,    "--tokens",        "5,6,7,8;9,10,11;12,13;14,15,16,17,18;3,4",
        "-o",        path, "--json", "--micro-batches", "4"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const std::vector<std::string> command = PenstockCommand(arguments, ranks);
    const Finished done = RunCommand(command);
    EXPECT_EQ(done.status, 0) << Describe(command) << "\n" << done.err;
    auto content = ReadFile(path);
    return done.out + (content.ok() ? content.value() : content.error().message);
  };
  const std::string wanted = run({"--schedule", "gpipe"}, 0);
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--stages", "3", "--schedule", "zb-h2"},
           {"--cut", "2,3,4", "--schedule", "zb-v", "--threads", "2"},
           {"--stages", "2", "--schedule", "interleaved-1f1b", "--chunks", "2"},
           {"--stages", "5", "--schedule", "1f1b", "--recompute", "full"},
           {"--cut", "2,2", "--schedule", "1f1b"}}) {
    EXPECT_EQ(run(flags, 0), wanted) << flags[1] << " " << flags[3];
  }
  EXPECT_EQ(run({"--schedule", "1f1b"}, 2), wanted);
  EXPECT_EQ(run({"--schedule", "v-min", "--recompute", "selective"}, 2), wanted);
  EXPECT_EQ(run({"--schedule", "zb-h1"}, 3), wanted);
}

}  // namespace
}  // namespace penstock::testing
