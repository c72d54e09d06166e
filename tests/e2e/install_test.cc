// An installed tree, moved to another place: the binary finds its configurations, and a program
// that knows nothing but find_package(penstock) is built, runs a model and trains it.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "base/json.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

class InstallTest : public ::testing::Test {
 protected:
  // Installs what is built (nothing is built here) and moves it.
  void SetUp() override {
    const Finished installed =
        RunCommand({"cmake", "--install", PENSTOCK_BINARY_DIR, "--prefix", Path("first")});
    ASSERT_EQ(installed.status, 0) << installed.err;
    fs::rename(Path("first"), Path("moved"));
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  TemporaryFolder folder_;
};

TEST_F(InstallTest, TheBinaryFindsItsConfigurationsBesideIt) {
  const std::string models = Path("moved/share/penstock/models/");
  fs::copy_file(models + "llama-2-7b.json", models + "of-this-tree.json");
  const Finished inspected =
      RunCommand({Path("moved/bin/penstock"), "inspect", "of-this-tree", "--json"});
  EXPECT_EQ(inspected.status, 0) << inspected.err;
  const Finished unknown = RunCommand({Path("moved/bin/penstock"), "train", "tny"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("tiny"), std::string::npos) << unknown.err;
}

// Every #include "..." of an installed header is installed too.
TEST_F(InstallTest, HeadersAreComplete) {
  const fs::path root = Path("moved/include/penstock");
  const std::regex include("#include \"([^\"]+)\"");
  int headers = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".h") {
      continue;
    }
    ++headers;
    std::ifstream file(entry.path());
    std::smatch match;
    for (std::string line; std::getline(file, line);) {
      if (std::regex_search(line, match, include)) {
        EXPECT_TRUE(fs::exists(root / match[1].str())) << entry.path() << ": " << line;
      }
    }
  }
  EXPECT_GT(headers, 100);
}

// What `text` has after `word` on each line that begins with it.
std::vector<std::string> Lines(const std::string& text, const std::string& word) {
  std::vector<std::string> found;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(word + " ")) {
      found.push_back(line.substr(word.size() + 1));
    }
  }
  return found;
}

TEST_F(InstallTest, AProgramThatFindsThePackageRunsAndTrainsAModel) {
  const Finished configured =
      RunCommand({"cmake", "-G", "Ninja", "-S", Path("moved/share/doc/penstock/examples/embed"),
                  "-B", Path("build"), "-DCMAKE_PREFIX_PATH=" + Path("moved"),
                  "-DCMAKE_CXX_COMPILER=" PENSTOCK_CXX_COMPILER, "-DCMAKE_CXX_FLAGS=-Wall -Werror",
                  "-DCMAKE_C_COMPILER=/no/c/compiler"});
  ASSERT_EQ(configured.status, 0) << configured.out << configured.err;
  const Finished built = RunCommand({"cmake", "--build", Path("build")});
  ASSERT_EQ(built.status, 0) << built.out << built.err;

  const std::string model = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/smollm2";
  const Finished embedded = RunCommand({Path("build/penstock_embed"), model, "5,17,99,3"});
  ASSERT_EQ(embedded.status, 0) << embedded.err;

  // The ids of `run`, and the loss of `gradients` for them.
  const Finished run = RunPenstock({"run", "-m", model, "--tokens", "5,17,99,3", "-n", "8",
                                    "--greedy", "--ignore-eos", "--weights", "f32", "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  std::string ids;
  const Json tokens = ParseJson(run.out, "run").value()["outputs"][0]["tokens"];
  for (const Json& id : tokens) {
    ids += (ids.empty() ? "" : ",") + id.dump();
  }
  ASSERT_EQ(Lines(embedded.out, "ids"), std::vector<std::string>{ids}) << embedded.out;
  const Finished gradients = RunPenstock({"gradients", "-m", model, "--tokens", "5,17,99,3," + ids,
                                          "-o", Path("g.safetensors"), "--json"});
  ASSERT_EQ(gradients.status, 0) << gradients.err;
  const std::vector<std::string> losses = Lines(embedded.out, "loss");
  ASSERT_EQ(losses.size(), 3U) << embedded.out;
  EXPECT_NEAR(std::stod(losses[0]),
              ParseJson(gradients.out, "gradients").value()["loss"].get<double>(), 1e-6);
  EXPECT_LT(std::stod(losses[1]), std::stod(losses[0]));
  EXPECT_LT(std::stod(losses[2]), std::stod(losses[1]));

  const Finished missing = RunCommand({Path("build/penstock_embed"), Path("nothing"), "1"});
  EXPECT_EQ(missing.status, 2);
  EXPECT_NE(missing.err.find("nothing"), std::string::npos) << missing.err;
}

}  // namespace
}  // namespace penstock::testing
