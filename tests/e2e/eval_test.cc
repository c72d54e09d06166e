// `eval` of models whose loss has several terms: each stands with its weight, and they are the
// numbers of other verbs.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "support/byte_model.h"
#include "support/model_maker.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

class EvalTest : public ::testing::Test {
 protected:
  // A random model of bytes with further losses: a checkpoint after one step, and its export.
  void Make(const Json& losses) {
    testing::WriteByteModel(Path("model"), 16, 24, losses);
    WriteText(Path("text"), "one sequence that is shorter than the window");
    const Finished trained = Run("train", {"train.steps=1", "train.checkpoint_every=1"});
    ASSERT_EQ(trained.status, 0) << trained.err;
    ASSERT_EQ(RunPenstock({"export", Path("run"), "-o", Path("out")}).status, 0);
    const Finished tokenized =
        RunPenstock({"tokenize", "-m", Path("out"), "--json"}, ReadFile(Path("text")).value());
    ASSERT_EQ(tokenized.status, 0) << tokenized.err;
    const Json ids = ParseJson(tokenized.out, "tokenize").value()["ids"];
    for (const Json& id : ids) {
      tokens_ += (tokens_.empty() ? "" : ",") + id.dump();
    }
    tokens_ += ",256";  // the end of the text
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  Finished Run(const std::string& verb, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        verb, std::string(PENSTOCK_SOURCE_DIR) + "/configs/train/tiny.toml", "--json", "--set"};
    for (const std::string& assignment :
         {"model.config=" + Path("model/config.json"), "data.path=" + Path("text"),
          std::string("data.sequence_tokens=128"), "train.folder=" + Path("run"),
          std::string("train.checkpoint_every=0"), std::string("train.log=\"\"")}) {
      arguments.push_back(assignment);
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunPenstock(arguments, "", {"PENSTOCK_CACHE=" + Path("cache")});
  }

  Json Eval(const std::vector<std::string>& more) const {
    const Finished finished = Run("eval", more);
    EXPECT_EQ(finished.status, 0) << finished.err;
    return ParseJson(finished.out, "eval").value();
  }

  // The terms by name, and that they add up to what `gradients` trains.
  void Check(const std::vector<std::pair<std::string, double>>& terms) {
    const Json json = Eval({"pipeline.stages=1"});
    ASSERT_EQ(json["losses"].size(), terms.size());
    double sum = 0;
    for (size_t k = 0; k < terms.size(); ++k) {
      const Json& term = json["losses"][k];
      EXPECT_EQ(term["name"], terms[k].first);
      EXPECT_NEAR(term["weight"].get<double>(), terms[k].second, 1e-6);
      EXPECT_NEAR(term["loss"].get<double>(), std::log(257.0), 0.3);  // hardly trained
      sum += term["weight"].get<double>() * term["loss"].get<double>();
    }
    EXPECT_NEAR(json["training_loss"].get<double>(), sum, 1e-12);
    EXPECT_EQ(json["loss"], json["losses"][0]["loss"]);
    const Finished gradients = RunPenstock({"gradients", "-m", Path("out"), "--tokens", tokens_,
                                            "-o", Path("g.safetensors"), "--json"});
    ASSERT_EQ(gradients.status, 0) << gradients.err;
    EXPECT_NEAR(ParseJson(gradients.out, "gradients").value()["loss"].get<double>(), sum, 1e-9);
    const Finished perplexity = RunPenstock(
        {"perplexity", "-m", Path("out"), "--tokens", tokens_, "--weights", "f32", "--json"});
    ASSERT_EQ(perplexity.status, 0) << perplexity.err;
    EXPECT_NEAR(ParseJson(perplexity.out, "perplexity").value()["nll_per_token"].get<double>(),
                json["loss"].get<double>(), 1e-5);
    EXPECT_EQ(Eval({"pipeline.stages=3", "pipeline.schedule=zb-v"}), json);
  }

  TemporaryFolder folder_;
  std::string tokens_;
};

TEST_F(EvalTest, EachEarlyExitHasItsLoss) {
  Make({{"early_exits", {{"layers", {1, 2}}, {"loss_weight", 0.25}}}});
  Check({{"main", 1}, {"exit 1", 0.25}, {"exit 2", 0.25}});
}

TEST_F(EvalTest, EachFurtherTokenHasItsLossAndItsTargets) {
  Make({{"num_nextn_predict_layers", 2}, {"mtp_loss_weight", 0.4}});
  Check({{"main", 1}, {"next 1", 0.2}, {"next 2", 0.2}});
  const Json json = Eval({});
  const auto targets = json["losses"][0]["tokens"].get<int>();
  EXPECT_EQ(json["losses"][1]["tokens"].get<int>(), targets - 1);
  EXPECT_EQ(json["losses"][2]["tokens"].get<int>(), targets - 2);
}

TEST_F(EvalTest, ValidationLinesHaveAllTerms) {
  Make({{"early_exits", {{"layers", {2}}, {"loss_weight", 0.25}}}});
  WriteText(Path("text"), std::string(2000, 'x'));
  fs::remove_all(Path("run"));
  const Finished trained = Run("train", {"train.steps=2", "train.eval_every=2",
                                         "data.sequence_tokens=32", "train.log=" + Path("log")});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Json last = ParseJson(trained.out, "train").value()["last"];
  EXPECT_EQ(last["eval_losses"]["main"], last["eval_loss"]);
  EXPECT_TRUE(last["eval_losses"]["exit 2"].is_number());
}

}  // namespace
}  // namespace penstock::testing
