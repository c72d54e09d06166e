#include "train/config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <numbers>

#include "base/file.h"
#include "base/toml.h"
#include "schedule/registry.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMany = int64_t{1} << 40;
constexpr double kHuge = 1e30;

std::string Home(const std::string& path) {
  const char* home = std::getenv("HOME");
  if (home != nullptr && path.starts_with("~/")) {
    return std::string(home) + path.substr(1);
  }
  return path;
}

// Where scripts/fetch-model puts models.
std::string ModelFolder() {
  const char* models = std::getenv("PENSTOCK_MODELS");
  return models != nullptr && *models != 0 ? std::string(models) : Home("~/.cache/penstock/models");
}

// The file that a relative path means.
Result<std::string> FindInput(const TomlTable& table, const char* key, const std::string& given,
                              bool model) {
  const std::string path = Home(given);
  if (fs::path(path).is_absolute()) {
    if (FileExists(path)) {
      return path;
    }
    return MakeError(ErrorCode::kNotFound, "[train.config] {}: no file '{}'{}", table.Place(key),
                     path, model ? "\nscripts/fetch-model fetches the model of the examples" : "");
  }
  std::vector<std::string> tried = {(fs::path(table.source()).parent_path() / path).string(), path};
  if (model) {
    tried.push_back((fs::path(ModelFolder()) / path).string());
  }
  for (const std::string& candidate : tried) {
    if (FileExists(candidate)) {
      return candidate;
    }
  }
  return MakeError(ErrorCode::kNotFound, "[train.config] {}: no file '{}'; looked for {}{}",
                   table.Place(key), given, fmt::join(tried, ", "),
                   model ? "\nscripts/fetch-model fetches the model of the examples" : "");
}

// An integer that is a seed: any of 63 bits.
Result<uint64_t> Seed(const TomlTable& table) {
  PENSTOCK_TRY_ASSIGN(const int64_t seed,
                      table.IntOr("seed", 0, 0, std::numeric_limits<int64_t>::max()));
  return static_cast<uint64_t>(seed);
}

Result<ModelSection> ReadModel(const TomlTable& table) {
  ModelSection model;
  PENSTOCK_TRY_ASSIGN(model.path, table.StringOr("path", ""));
  PENSTOCK_TRY_ASSIGN(model.config, table.StringOr("config", ""));
  PENSTOCK_TRY_ASSIGN(model.seed, Seed(table));
  if (model.path.empty() == model.config.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.config] {}: got {}, wanted either path (a model to go on from) or "
                     "config (a config.json: random weights)",
                     table.Place("path"), model.path.empty() ? "neither" : "both path and config");
  }
  const bool has_path = !model.path.empty();
  std::string& file = has_path ? model.path : model.config;
  PENSTOCK_TRY_ASSIGN(file, FindInput(table, has_path ? "path" : "config", file, has_path));
  return model;
}

// Files of a path: itself, or the files of a folder in the order of their names.
Result<> AddPaths(const TomlTable& table, const std::string& given,
                  std::vector<std::string>& paths) {
  PENSTOCK_TRY_ASSIGN(const std::string path, FindInput(table, "path", given, false));
  if (!IsFolder(path)) {
    paths.push_back(path);
    return {};
  }
  std::error_code code;
  std::vector<std::string> names;
  for (fs::directory_iterator it(path, code), end; !code && it != end; it.increment(code)) {
    if (it->is_regular_file(code)) {
      names.push_back(fs::canonical(it->path(), code).string());  // links count once
    }
  }
  if (code || names.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.config] {}: the folder '{}' has no files that can be read",
                     table.Place("path"), path);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  paths.insert(paths.end(), names.begin(), names.end());
  return {};
}

Result<DataSection> ReadData(const TomlTable& table, const ModelSection& model) {
  DataSection data;
  PENSTOCK_TRY_ASSIGN(const std::vector<std::string> given, table.StringsOr("path"));
  PENSTOCK_TRY_ASSIGN(data.tokenizer, table.StringOr("tokenizer", ""));
  PENSTOCK_TRY_ASSIGN(const std::string format,
                      table.ChoiceOr("format", "text", {"text", "jsonl", "chat"}));
  data.format = format == "text"    ? DataFormat::kText
                : format == "jsonl" ? DataFormat::kJsonl
                                    : DataFormat::kChat;
  PENSTOCK_TRY_ASSIGN(data.pack, table.BoolOr("pack", true));
  PENSTOCK_TRY_ASSIGN(data.sequence_tokens,
                      table.IntOr("sequence_tokens", 512, 1, int64_t{1} << 24));
  PENSTOCK_TRY_ASSIGN(data.validation, table.NumberOr("validation", -1, 0, 0.9));
  PENSTOCK_TRY_ASSIGN(data.chat_template, table.StringOr("template", ""));
  if (given.empty()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[train.config] {}: missing, wanted a text or JSONL file, a folder of them, or "
        "a list",
        table.Place("path"));
  }
  for (const std::string& path : given) {
    PENSTOCK_TRY(AddPaths(table, path, data.paths));
  }
  if (!data.tokenizer.empty()) {
    PENSTOCK_TRY_ASSIGN(data.tokenizer, FindInput(table, "tokenizer", data.tokenizer, true));
  } else if (model.path.empty()) {
    const std::string beside = (fs::path(model.config).parent_path() / "tokenizer.json").string();
    if (!FileExists(beside)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[train.config] {}: missing, and there is no '{}': wanted a model whose "
                       "tokenizer to use",
                       table.Place("tokenizer"), beside);
    }
  }
  return data;
}

Result<PipelineSection> ReadPipeline(const TomlTable& table) {
  PipelineSection pipeline;
  PENSTOCK_TRY_ASSIGN(pipeline.stages, table.IntOr("stages", 1, 1, 4096));
  PENSTOCK_TRY_ASSIGN(pipeline.cut, table.IntsOr("cut", 1, int64_t{1} << 20));
  PENSTOCK_TRY_ASSIGN(pipeline.schedule, table.StringOr("schedule", "1f1b"));
  PENSTOCK_TRY_ASSIGN(pipeline.chunks, table.IntOr("chunks", 0, 0, 4096));
  PENSTOCK_TRY_ASSIGN(pipeline.slices, table.IntOr("slices", 0, 0, 4096));
  PENSTOCK_TRY_ASSIGN(pipeline.micro_batches, table.IntOr("micro_batches", 1, 1, 1 << 14));
  PENSTOCK_TRY_ASSIGN(pipeline.micro_batch, table.IntOr("micro_batch", 1, 1, 1 << 16));
  PENSTOCK_TRY_ASSIGN(pipeline.replicas, table.IntOr("replicas", 1, 1, 4096));
  PENSTOCK_TRY_ASSIGN(pipeline.barrier, table.BoolOr("barrier", true));
  PENSTOCK_TRY_ASSIGN(pipeline.lanes, table.IntOr("lanes", 0, 0, 4096));
  PENSTOCK_TRY_ASSIGN(pipeline.zero1, table.BoolOr("zero1", true));
  PENSTOCK_TRY_ASSIGN(const std::string communication, table.StringOr("communication", "needed"));
  if (communication != "needed" && communication != "naive") {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.config] {}: got '{}', wanted needed or naive",
                     table.Place("communication"), communication);
  }
  pipeline.naive = communication == "naive";
  PENSTOCK_TRY_ASSIGN(pipeline.links, table.StringOr("links", ""));
  if (!pipeline.links.empty()) {
    PENSTOCK_TRY_ASSIGN(pipeline.links, FindInput(table, "links", pipeline.links, false));
  }
  if (schedule::FindGenerator(pipeline.schedule) == nullptr) {
    auto file = FindInput(table, "schedule", pipeline.schedule, false);
    if (!file.ok() || IsFolder(file.value())) {
      // The generator's own message names the nearest schedule.
      const auto made = schedule::Generate(pipeline.schedule, {});
      return MakeError(ErrorCode::kInvalidArgument,
                       "[train.config] {}: no schedule or file of this name\n{}",
                       table.Place("schedule"), made.ok() ? "" : made.error().message);
    }
    pipeline.schedule = std::move(file).value();
    pipeline.schedule_is_file = true;
  }
  return pipeline;
}

Result<OptimizerSection> ReadOptimizer(const TomlTable& table) {
  OptimizerSection o;
  PENSTOCK_TRY_ASSIGN(o.lr, table.NumberOr("lr", o.lr, 0, kHuge));
  PENSTOCK_TRY_ASSIGN(o.beta1, table.NumberOr("beta1", o.beta1, 0, 0.9999999));
  PENSTOCK_TRY_ASSIGN(o.beta2, table.NumberOr("beta2", o.beta2, 0, 0.9999999));
  PENSTOCK_TRY_ASSIGN(o.epsilon, table.NumberOr("epsilon", o.epsilon, 1e-30, 1));
  PENSTOCK_TRY_ASSIGN(o.weight_decay, table.NumberOr("weight_decay", o.weight_decay, 0, 1e6));
  PENSTOCK_TRY_ASSIGN(o.clip_norm, table.NumberOr("clip_norm", o.clip_norm, 0, kHuge));
  PENSTOCK_TRY_ASSIGN(o.warmup_steps, table.IntOr("warmup_steps", 0, 0, kMany));
  PENSTOCK_TRY_ASSIGN(const std::string decay,
                      table.ChoiceOr("decay", "cosine", {"cosine", "linear", "none"}));
  o.decay = decay == "cosine"   ? LrDecay::kCosine
            : decay == "linear" ? LrDecay::kLinear
                                : LrDecay::kNone;
  PENSTOCK_TRY_ASSIGN(o.min_lr, table.NumberOr("min_lr", 0, 0, kHuge));
  if (o.min_lr > o.lr) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.config] {}: got {}, wanted at most lr, which is {}",
                     table.Place("min_lr"), o.min_lr, o.lr);
  }
  return o;
}

Result<TrainSection> ReadTrain(const TomlTable& table) {
  TrainSection train;
  PENSTOCK_TRY_ASSIGN(train.steps, table.IntOr("steps", 100, 1, int64_t{1} << 30));
  PENSTOCK_TRY_ASSIGN(train.seed, Seed(table));
  PENSTOCK_TRY_ASSIGN(const std::string dtype, table.ChoiceOr("dtype", "f32", {"bf16", "f32"}));
  train.bf16 = dtype == "bf16";
  PENSTOCK_TRY_ASSIGN(train.dropout, table.NumberOr("dropout", 0, 0, 0.99));
  PENSTOCK_TRY_ASSIGN(const std::string recompute,
                      table.ChoiceOr("recompute", "none", {"none", "selective", "full"}));
  train.recompute = recompute == "none"        ? Recompute::kNone
                    : recompute == "selective" ? Recompute::kSelective
                                               : Recompute::kFull;
  PENSTOCK_TRY_ASSIGN(train.folder, table.StringOr("folder", ""));
  train.folder = Home(train.folder);
  PENSTOCK_TRY_ASSIGN(train.log, table.StringOr("log", ""));
  train.log = Home(train.log);
  PENSTOCK_TRY_ASSIGN(train.checkpoint_every, table.IntOr("checkpoint_every", 0, 0, kMany));
  PENSTOCK_TRY_ASSIGN(train.keep, table.IntOr("keep", 2, 1, 1 << 20));
  PENSTOCK_TRY_ASSIGN(train.eval_every, table.IntOr("eval_every", 0, 0, kMany));
  if (train.checkpoint_every > 0 && train.folder.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.config] {}: got {}, but there is no folder to write to, wanted "
                     "train.folder",
                     table.Place("checkpoint_every"), train.checkpoint_every);
  }
  return train;
}

// Tells the table which keys it may have, so that a misspelt one is named before anything that
// follows from it.
void Know(const TomlTable& table, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    (void)table.Has(key);
  }
}

}  // namespace

Result<TrainConfig> ReadTrainConfig(const std::string& path,
                                    const std::vector<std::string>& assignments) {
  PENSTOCK_TRY_ASSIGN(TomlTable file, ReadTomlFile(path));
  for (const std::string& assignment : assignments) {
    PENSTOCK_TRY(file.Set(assignment, "--set"));
  }
  TrainConfig config;
  config.source = path;
  PENSTOCK_TRY_ASSIGN(const TomlTable model, file.Table("model"));
  PENSTOCK_TRY_ASSIGN(const TomlTable data, file.Table("data"));
  PENSTOCK_TRY_ASSIGN(const TomlTable pipeline, file.Table("pipeline"));
  PENSTOCK_TRY_ASSIGN(const TomlTable optimizer, file.Table("optimizer"));
  PENSTOCK_TRY_ASSIGN(const TomlTable train, file.Table("train"));
  Know(model, {"path", "config", "seed"});
  Know(data, {"path", "tokenizer", "format", "pack", "sequence_tokens", "validation", "template"});
  Know(pipeline, {"stages", "cut", "schedule", "chunks", "slices", "micro_batches", "micro_batch",
                  "replicas", "barrier", "lanes", "zero1", "communication", "links"});
  Know(optimizer, {"lr", "beta1", "beta2", "epsilon", "weight_decay", "clip_norm", "warmup_steps",
                   "decay", "min_lr"});
  Know(train, {"steps", "seed", "dtype", "dropout", "recompute", "log", "folder",
               "checkpoint_every", "keep", "eval_every"});
  PENSTOCK_TRY(file.NoUnknownKeys());
  PENSTOCK_TRY_ASSIGN(config.model, ReadModel(model));
  PENSTOCK_TRY_ASSIGN(config.data, ReadData(data, config.model));
  PENSTOCK_TRY_ASSIGN(config.pipeline, ReadPipeline(pipeline));
  PENSTOCK_TRY_ASSIGN(config.optimizer, ReadOptimizer(optimizer));
  PENSTOCK_TRY_ASSIGN(config.train, ReadTrain(train));
  if (config.data.validation < 0) {
    config.data.validation = config.train.eval_every > 0 ? 0.05 : 0.0;
  }
  return config;
}

std::string TrainConfig::Identity() const {
  const OptimizerSection& o = optimizer;
  std::string text;
  // By name: a run may go on from another folder. What the model is stands in its layout.
  if (model.path.empty()) {
    text += fmt::format("model.seed = {}\n", model.seed);
  } else {
    const fs::path path = fs::path(model.path).lexically_normal();
    text += fmt::format("model.path = .../{}\n",
                        (path.has_filename() ? path : path.parent_path()).filename().string());
  }
  text += fmt::format("data.format = {}\ndata.pack = {}\ndata.sequence_tokens = {}\n",
                      static_cast<int>(data.format), data.pack, data.sequence_tokens);
  text += fmt::format("global_sequences = {}\nmicro_batch = {}\n", GlobalSequences(),
                      pipeline.micro_batch);
  text +=
      fmt::format("optimizer = adamw {} {} {} {}\n", o.beta1, o.beta2, o.epsilon, o.weight_decay);
  text += fmt::format("train.seed = {}\ntrain.dtype = {}\ntrain.dropout = {}\n", train.seed,
                      train.bf16 ? "bf16" : "f32", train.dropout);
  return text;
}

double LearningRate(const OptimizerSection& optimizer, int64_t steps, int64_t step) {
  const double lr = optimizer.lr;
  if (step <= optimizer.warmup_steps) {
    return lr * static_cast<double>(step) / static_cast<double>(optimizer.warmup_steps);
  }
  if (optimizer.decay == LrDecay::kNone) {
    return lr;
  }
  const auto rest = static_cast<double>(std::max<int64_t>(1, steps - optimizer.warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - optimizer.warmup_steps - 1) / rest);
  const double share = optimizer.decay == LrDecay::kLinear
                           ? 1.0 - done
                           : 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return optimizer.min_lr + (lr - optimizer.min_lr) * share;
}

}  // namespace penstock::train
