#include "train/rank_weights.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "base/json.h"
#include "base/progress.h"
#include "base/rng.h"
#include "text/tokenizer_write.h"

namespace penstock::train {
namespace {

constexpr uint64_t kInitKey = 0x696e6974;
constexpr double kDefaultRange = 0.02;

uint64_t NameKey(uint64_t seed, const std::string& name) {
  uint64_t key = MixKey(seed, kInitKey);
  for (const char c : name) {
    key = MixKey(key, static_cast<unsigned char>(c));
  }
  return key;
}

// Vectors of norms and the value that leaves a norm's result as it is.
std::map<int32_t, float> NormStarts(const model::Graph& graph) {
  std::map<int32_t, float> starts;
  for (const model::Op& op : graph.ops) {
    if (const auto* norm = std::get_if<model::RmsNormOp>(&op.params)) {
      starts[norm->weight.value()] = norm->add_one ? 0.0F : 1.0F;
      continue;
    }
    // Norms inside other operations (keys of a mixture over depth, latents) scale by their weight.
    for (const TensorId id : model::TensorsOf(op)) {
      const model::WeightTensor& tensor = graph.tensor(id);
      if (tensor.role == model::TensorRole::kVector && tensor.name.ends_with("norm.weight")) {
        starts.emplace(id.value(), 1.0F);
      }
    }
  }
  return starts;
}

// Multi-stream residuals, as published: sublayer i reads stream i mod n, each stream keeps itself
// and takes the whole output; the part that depends on the streams starts with nothing.
std::map<int32_t, std::vector<float>> StreamStarts(const model::Graph& graph) {
  std::map<int32_t, std::vector<float>> starts;
  int64_t sublayer = 0;
  for (const model::Op& op : graph.ops) {
    const auto* weights = std::get_if<model::StreamWeightsOp>(&op.params);
    if (weights == nullptr) {
      continue;
    }
    const int64_t n = weights->streams;
    std::vector<float> base;
    for (int64_t k = 0; k < n; ++k) {
      base.push_back(k == sublayer % n ? 1.0F : 0.0F);
      for (int64_t j = 0; j < n; ++j) {
        base.push_back(j == k ? 1.0F : 0.0F);
      }
      base.push_back(1.0F);
    }
    starts[weights->base.value()] = std::move(base);
    if (weights->scale.valid()) {
      starts[weights->scale.value()] = {0.01F, 0.01F};
    }
    ++sublayer;
  }
  return starts;
}

// Values of [low, high) that a function of them fills `out` with.
void FillUniform(std::span<float> out, uint64_t key, double low, double high,
                 const std::function<double(double)>& of) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto words =
        Philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0}, key);
    const double unit = (static_cast<double>(words[0]) + 0.5) * 0x1p-32;
    out[i] = static_cast<float>(of(low + (high - low) * unit));
  }
}

// Where zeros would stop every gradient: taps of short convolutions as those of other convolutions
// (uniform within 1 / sqrt(taps)); the decays of delta attention as flash-linear-attention 0.6
// starts them, rates of 1 to 16 and steps of 0.001 to 0.1. A bounded decay, for which nothing is
// published, starts with the same steps at a rate of 1.
using Fill = std::function<void(std::span<float> out, uint64_t key)>;

std::map<int32_t, Fill> SequenceStarts(const model::Graph& graph) {
  std::map<int32_t, Fill> starts;
  for (const model::Op& op : graph.ops) {
    if (const auto* conv = std::get_if<model::ShortConvOp>(&op.params)) {
      const double most = 1 / std::sqrt(static_cast<double>(conv->taps));
      for (const TensorId id : conv->weights) {
        starts[id.value()] = [most](std::span<float> out, uint64_t key) {
          FillUniform(out, key, -most, most, [](double x) { return x; });
        };
      }
    }
    if (const auto* delta = std::get_if<model::DeltaAttentionOp>(&op.params)) {
      const bool bounded = delta->bounded;
      const double bound = -static_cast<double>(delta->lower_bound);
      starts[delta->a_log.value()] = [bounded](std::span<float> out, uint64_t key) {
        FillUniform(out, key, 1, bounded ? 1 : 16, [](double x) { return std::log(x); });
      };
      starts[delta->dt_bias.value()] = [=](std::span<float> out, uint64_t key) {
        FillUniform(out, key, std::log(0.001), std::log(0.1), [=](double log_step) {
          const double step = std::exp(log_step);
          const double share = step / bound;
          return bounded ? std::log(share / (1 - share)) : std::log(std::expm1(step));
        });
      };
    }
  }
  return starts;
}

void FillNormal(std::span<float> out, uint64_t key, float deviation) {
  for (size_t i = 0; i < out.size(); i += 4) {
    if ((i & 0xFFFFF) == 0) {
      Progress();
    }
    const auto words =
        Philox({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0}, key);
    const auto first = NormalPair(words[0], words[1]);
    const auto second = NormalPair(words[2], words[3]);
    const float draws[4] = {first[0], first[1], second[0], second[1]};
    for (size_t j = 0; j < 4 && i + j < out.size(); ++j) {
      out[i + j] = deviation * draws[j];
    }
  }
}

// The rank of a replica that writes a tensor's moments, for every replica.
bool WritesTensor(const TrainSetup& setup, int32_t channel_rank, TensorId id) {
  return setup.holder[static_cast<size_t>(id.value())] == channel_rank % setup.ranks();
}

// Ranks of a replica that write weights; their places are the numbers of the files.
std::vector<int32_t> WeightWriters(const TrainSetup& setup) {
  std::set<int32_t> writers;
  for (const TensorId id : setup.stored) {
    writers.insert(setup.holder[static_cast<size_t>(id.value())]);
  }
  return {writers.begin(), writers.end()};
}

std::string WeightsFile(const TrainSetup& setup, int32_t rank) {
  const std::vector<int32_t> writers = WeightWriters(setup);
  const auto place = std::find(writers.begin(), writers.end(), rank) - writers.begin();
  if (writers.size() == 1) {
    return "model.safetensors";
  }
  return fmt::format("model-{:05d}-of-{:05d}.safetensors", place + 1, writers.size());
}

std::string OptimizerFile(const TrainSetup& setup, int32_t channel_rank) {
  const std::vector<int32_t> writers = WritingRanks(setup);
  const auto place = std::find(writers.begin(), writers.end(), channel_rank) - writers.begin();
  return fmt::format("optimizer-{:05d}-of-{:05d}.safetensors", place + 1, writers.size());
}

}  // namespace

void FillRandom(const TrainSetup& setup, runtime::TrainRank& rank) {
  const auto starts = NormStarts(setup.model.graph);
  const auto streams = StreamStarts(setup.model.graph);
  const auto sequences = SequenceStarts(setup.model.graph);
  const JsonReader config(setup.model_config, setup.model_source);
  const auto given = config.NumberOr("initializer_range", kDefaultRange, 0, 10);
  const auto deviation = static_cast<float>(given.ok() ? given.value() : kDefaultRange);
  const auto fill = [&](const runtime::Parameter& parameter) {
    const std::span<float> values = Tensor(parameter.master).All<float>();
    if (const auto stream = streams.find(parameter.id.value()); stream != streams.end()) {
      std::ranges::copy(stream->second, values.begin());
      return;
    }
    if (const auto own = sequences.find(parameter.id.value()); own != sequences.end()) {
      own->second(values, NameKey(setup.config.model.seed, parameter.name));
      return;
    }
    if (setup.model.graph.tensor(parameter.id).role != model::TensorRole::kVector) {
      FillNormal(values, NameKey(setup.config.model.seed, parameter.name), deviation);
      return;
    }
    const auto start = starts.find(parameter.id.value());
    std::fill(values.begin(), values.end(), start == starts.end() ? 0.0F : start->second);
  };
  std::ranges::for_each(rank.parameters(), fill);
  std::ranges::for_each(rank.constants(), fill);
  rank.ParametersChanged({});
}

Result<> LoadWeights(const Checkpoint& checkpoint, runtime::TrainRank& rank) {
  for (const auto list : {rank.parameters(), rank.constants()}) {
    for (const runtime::Parameter& parameter : list) {
      const std::span<float> values = Tensor(parameter.master).All<float>();
      PENSTOCK_TRY_ASSIGN(const std::span<const float> stored,
                          checkpoint.Weight(parameter.name, static_cast<int64_t>(values.size())));
      std::copy(stored.begin(), stored.end(), values.begin());
      Progress();
    }
  }
  rank.ParametersChanged({});
  return {};
}

Result<> LoadMoments(const Checkpoint& checkpoint, runtime::TrainRank& rank,
                     RankOptimizer& optimizer) {
  for (size_t i = 0; i < rank.parameters().size(); ++i) {
    const std::string& name = rank.parameters()[i].name;
    const int64_t begin = optimizer.shard(i).begin;
    PENSTOCK_TRY(checkpoint.Moment(name, "exp_avg", begin, optimizer.first_moment(i)));
    PENSTOCK_TRY(checkpoint.Moment(name, "exp_avg_sq", begin, optimizer.second_moment(i)));
    Progress();
  }
  return {};
}

std::vector<CheckpointPart> PartsToWrite(const TrainSetup& setup, int32_t channel_rank,
                                         runtime::TrainRank& rank, RankOptimizer& optimizer) {
  CheckpointPart weights;
  CheckpointPart moments;
  const bool shards = setup.replicas() > 1 && setup.config.pipeline.zero1;
  for (size_t i = 0; i < rank.parameters().size(); ++i) {
    const runtime::Parameter& parameter = rank.parameters()[i];
    if (!WritesTensor(setup, channel_rank, parameter.id)) {
      continue;
    }
    if (channel_rank < setup.ranks()) {
      weights.tensors.push_back(
          {parameter.name, parameter.shape, Tensor(parameter.master).All<float>()});
    } else if (!shards) {
      continue;  // the first replica has the same moments
    }
    const Shard shard = optimizer.shard(i);
    if (shard.begin == shard.end) {
      continue;
    }
    const std::string range = shards ? fmt::format("[{}:{}]", shard.begin, shard.end) : "";
    const std::vector<int64_t> shape =
        shards ? std::vector<int64_t>{shard.end - shard.begin} : parameter.shape;
    moments.tensors.push_back(
        {parameter.name + ".exp_avg" + range, shape, optimizer.first_moment(i)});
    moments.tensors.push_back(
        {parameter.name + ".exp_avg_sq" + range, shape, optimizer.second_moment(i)});
  }
  for (const runtime::Parameter& constant : rank.constants()) {
    if (channel_rank < setup.ranks() && WritesTensor(setup, channel_rank, constant.id)) {
      weights.tensors.push_back(
          {constant.name, constant.shape, Tensor(constant.master).All<float>()});
    }
  }
  std::vector<CheckpointPart> parts;
  if (!weights.tensors.empty()) {
    weights.name = WeightsFile(setup, channel_rank);
    parts.push_back(std::move(weights));
  }
  if (!moments.tensors.empty()) {
    moments.name = OptimizerFile(setup, channel_rank);
    parts.push_back(std::move(moments));
  }
  return parts;
}

std::vector<int32_t> WritingRanks(const TrainSetup& setup) {
  std::vector<int32_t> ranks;
  const bool shards = setup.replicas() > 1 && setup.config.pipeline.zero1;
  for (int32_t k = 0; k < (shards ? setup.replicas() : 1); ++k) {
    for (const int32_t rank : WeightWriters(setup)) {
      ranks.push_back(k * setup.ranks() + rank);
    }
  }
  return ranks;
}

Result<std::vector<std::pair<std::string, std::string>>> SmallFiles(const TrainSetup& setup) {
  std::vector<std::pair<std::string, std::string>> files;
  Json config = setup.model_config;
  config["torch_dtype"] = "float32";
  files.emplace_back("config.json", DumpJson(config, 2));
  const weights::TokenizerMaterial& material = setup.material;
  if (material.gguf.has_value()) {
    const text::GgufVocabulary vocabulary = VocabularyOf(*material.gguf);
    PENSTOCK_TRY_ASSIGN(const Json json, text::TokenizerJsonFromGguf(vocabulary, material.source));
    files.emplace_back("tokenizer.json", DumpJson(json));
    files.emplace_back(
        "tokenizer_config.json",
        DumpJson(text::TokenizerConfigFromGguf(vocabulary, material.chat_template), 2));
  } else {
    files.emplace_back("tokenizer.json", material.tokenizer_json);
    if (!material.tokenizer_config_json.empty()) {
      files.emplace_back("tokenizer_config.json", material.tokenizer_config_json);
    }
    if (!material.chat_template.empty()) {
      files.emplace_back("chat_template.jinja", material.chat_template);
    }
  }
  if (setup.files != nullptr && !setup.files->generation_config().empty()) {
    files.emplace_back("generation_config.json", DumpJson(setup.files->generation_config(), 2));
  }
  if (WeightWriters(setup).size() > 1) {
    Json map = Json::object();
    int64_t bytes = 0;
    for (const TensorId id : setup.stored) {
      const model::WeightTensor& tensor = setup.model.graph.tensor(id);
      map[tensor.name] = WeightsFile(setup, setup.holder[static_cast<size_t>(id.value())]);
      int64_t elements = 1;
      for (const int64_t n : tensor.shape) {
        elements *= n;
      }
      bytes += elements * static_cast<int64_t>(sizeof(float));
    }
    const Json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
    files.emplace_back("model.safetensors.index.json", DumpJson(index, 1));
  }
  return files;
}

}  // namespace penstock::train
