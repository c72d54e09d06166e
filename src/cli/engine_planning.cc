#include "cli/engine_planning.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>

#include "base/file.h"
#include "base/json.h"
#include "cli/calibrate.h"
#include "kernels/device.h"

namespace penstock::cli {

std::string CalibratedPath() {
  if (const char* set = std::getenv("PENSTOCK_SYSTEM"); set != nullptr && *set != '\0') {
    return set;
  }
  std::filesystem::path folder;
  if (const char* xdg = std::getenv("XDG_CONFIG_HOME"); xdg != nullptr && *xdg != '\0') {
    folder = xdg;
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    folder = std::filesystem::path(home) / ".config";
  } else {
    return "";
  }
  return (folder / "penstock" / "system.toml").string();
}

cost::HeldTensors HeldBy(const model::Graph& graph, const runtime::WeightRule& rule,
                         const kernels::Device* device) {
  return [&graph, rule, device](TensorId id) -> std::optional<cost::HeldTensor> {
    const model::WeightTensor& tensor = graph.tensor(id);
    if (tensor.role == model::TensorRole::kVector || tensor.shape.size() < 2) {
      return std::nullopt;
    }
    const runtime::HeldMatrix& held = rule.held(id);
    cost::HeldTensor out;
    out.type = PrecisionOf(held.type);
    if (device != nullptr) {
      out.bytes = static_cast<double>(
          device->MatrixBytes(tensor.shape[0], tensor.shape[1], held.type, held.source));
    }
    return out;
  };
}

hw::Precision MainPrecision(const model::Graph& graph, const runtime::WeightRule& rule) {
  std::map<hw::Precision, double> elements;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const model::WeightTensor& tensor = graph.tensors[i];
    if (tensor.role == model::TensorRole::kVector || tensor.shape.size() < 2) {
      continue;
    }
    double n = 1;
    for (const int64_t size : tensor.shape) {
      n *= static_cast<double>(size);
    }
    elements[PrecisionOf(rule.held(TensorId(static_cast<int32_t>(i))).type)] += n;
  }
  hw::Precision most = hw::Precision::kBf16;
  double best = 0;
  for (const auto& [precision, n] : elements) {
    if (n > best) {
      best = n;
      most = precision;
    }
  }
  return most;
}

namespace {

std::optional<runtime::WeightChoice> ChoiceOf(const plan::Layout& layout) {
  if (layout.as_stored) {
    return runtime::WeightChoice::kAuto;
  }
  switch (layout.precision) {
    case hw::Precision::kFp32:
      return runtime::WeightChoice::kF32;
    case hw::Precision::kBf16:
      return runtime::WeightChoice::kBF16;
    case hw::Precision::kInt8:
      return runtime::WeightChoice::kInt8;
    case hw::Precision::kInt4:
      return runtime::WeightChoice::kInt4;
    default:
      return std::nullopt;
  }
}

plan::MemoryAccount AccountOf(const MemoryFigures& figures) {
  const auto bytes = [&](MemoryCategory category) {
    return static_cast<double>(figures[category]);
  };
  plan::MemoryAccount account;
  account.weights = bytes(MemoryCategory::kWeights);
  account.kv = bytes(MemoryCategory::kKv);
  account.activations = bytes(MemoryCategory::kActivations);
  account.workspace = bytes(MemoryCategory::kWorkspace);
  account.messages = bytes(MemoryCategory::kMessages);
  return account;
}

}  // namespace

plan::EngineMemory ArenasOf(const serve::ModelBundle& bundle, const kernels::Device& device,
                            int64_t prompt, int64_t output, bool across_processes) {
  return [&bundle, &device, prompt, output, across_processes](
             const plan::Layout& layout,
             int64_t sequences) -> Result<std::vector<plan::MemoryAccount>> {
    const std::optional<runtime::WeightChoice> choice = ChoiceOf(layout);
    if (!choice || layout.tp > 1 || layout.chunks > 1) {
      return MakeError(ErrorCode::kUnsupported, "[cli.plan] the engine has no such layout");
    }
    serve::RunOptions options;
    options.stages = layout.pp;
    options.weights = *choice;
    options.prefill_chunk = layout.prefill_chunk_tokens;
    options.memory_bytes = INT64_MAX / 4;  // what does not fit is the plan's to say
    options.threads = 1;
    if (layout.kv_precision == hw::Precision::kFp32) {
      options.kv_type = DType::kF32;
    }
    int64_t at = 0;
    for (size_t s = 0; s + 1 < layout.cut.size(); ++s) {
      at += layout.cut[s];
      options.cut.push_back(at);
    }
    serve::RunDemand demand;
    demand.sequences = sequences;
    demand.positions = prompt + output;
    demand.longest_prompt = prompt;
    PENSTOCK_TRY_ASSIGN(const serve::RunSetup setup,
                        serve::MakeRunSetup(bundle, options, demand, 1, across_processes, device));
    std::vector<plan::MemoryAccount> accounts;
    for (const serve::RankMemory& memory : setup.memory) {
      accounts.push_back(AccountOf(memory.figures));
    }
    return accounts;
  };
}

namespace {

// What `calibrate` measured of this project's engine with this instruction set. Errors say why
// there is none.
Result<hw::Engine> CalibratedEngine(const std::string& path, const std::string& instruction_set) {
  const auto none = [](std::string why) { return Error{ErrorCode::kNotFound, std::move(why)}; };
  if (path.empty() || !FileExists(path)) {
    return none("no calibrated system file (penstock calibrate writes one)");
  }
  PENSTOCK_TRY_ASSIGN(hw::System system, hw::ReadSystem(path));
  if (!system.engine) {
    return none(path + " has no section [engine]: it was not calibrated");
  }
  if (system.engine->instruction_set != instruction_set) {
    return none(fmt::format("{} was measured with {}, this run uses {}", path,
                            system.engine->instruction_set, instruction_set));
  }
  return std::move(*system.engine);
}

// What the calibrated file says by `of`, if there is one for this machine.
template <class Of>
CrossingWeight CrossingFrom(const Of& of) {
  const std::string path = CalibratedPath();
  if (path.empty() || !FileExists(path)) {
    return {};
  }
  const auto device = kernels::CreateCpuDevice({});
  if (!device.ok()) {
    return {};  // said when the run makes its own
  }
  const auto engine = CalibratedEngine(path, device.value()->InstructionSet());
  const double weight = engine.ok() ? of(engine.value()) : 0;
  return weight > 0 ? CrossingWeight{weight, path} : CrossingWeight();
}

Result<plan::ServingForecast> Forecast(const serve::ModelBundle& bundle,
                                       const serve::Engine& engine, const hw::Engine& machine,
                                       const std::vector<plan::Request>& requests) {
  const serve::RunSetup& setup = engine.setup();
  PENSTOCK_TRY_ASSIGN(const cost::ModelProfile profile,
                      cost::BuildProfile(bundle.model.graph, "", "",
                                         HeldBy(bundle.model.graph, setup.rule, nullptr)));
  plan::ServingQuestion q;
  q.model = &profile;
  q.engine = &machine;
  for (const runtime::StageSpec& stage : setup.stages) {
    q.units.push_back(stage.range.last_layer - stage.range.first_layer);
  }
  q.rules = {setup.groups, setup.limits.rows, setup.prefill_chunk, setup.attention_share};
  q.requests = requests;
  q.formats.weights = MainPrecision(bundle.model.graph, setup.rule);
  q.formats.as_stored = true;
  q.across_processes = engine.across_processes();
  q.threads = engine.threads();
  return plan::ForecastServing(q);
}

}  // namespace

CrossingWeight DecodeCrossing(hw::Precision weights, bool across_processes) {
  return CrossingFrom([&](const hw::Engine& engine) {
    return cost::DecodeWorkPerByte(engine, weights, across_processes);
  });
}

CrossingWeight TrainCrossing(bool across_processes) {
  return CrossingFrom(
      [&](const hw::Engine& engine) { return cost::TrainWorkPerByte(engine, across_processes); });
}

Result<CrossingWeight> AgreeOnCrossing(comm::Channel* channel, CrossingWeight own,
                                       double deadline_s) {
  if (channel == nullptr) {
    return own;
  }
  static auto& account = *new MemoryAccount;  // outlives every channel
  const auto lane = [](int32_t target) {
    return comm::Lane{comm::LaneKind::kControl, 0, target, comm::kCutEdge};
  };
  const comm::LaneOptions options{sizeof own.work_per_byte, 1};
  if (channel->rank() > 0) {
    PENSTOCK_TRY(channel->Open(lane(channel->rank()), options, account));
    PENSTOCK_TRY_ASSIGN(const comm::Message message,
                        channel->Receive(lane(channel->rank()), {0, 0}, deadline_s));
    if (message.payload().size() != sizeof own.work_per_byte) {
      return MakeError(ErrorCode::kCorruptData,
                       "[cli.cut] rank 0 sent {} bytes, wanted {}: do all ranks run the same "
                       "binary?",
                       message.payload().size(), sizeof own.work_per_byte);
    }
    std::memcpy(&own.work_per_byte, message.payload().data(), sizeof own.work_per_byte);
    return own;
  }
  const auto part = std::as_bytes(std::span(&own.work_per_byte, 1));
  for (int32_t other = 1; other < channel->size(); ++other) {
    PENSTOCK_TRY(channel->Open(lane(other), options, account));
    PENSTOCK_TRY(channel->Send({lane(other), {0, 0}, DType::kU8, std::ssize(part), 1, 0},
                               std::span(&part, 1), deadline_s));
  }
  return own;
}

Foretold Foretell(const serve::ModelBundle& bundle, const serve::Engine& engine,
                  const std::vector<plan::Request>& requests) {
  Foretold out;
  out.system = CalibratedPath();
  const auto machine = CalibratedEngine(out.system, engine.instruction_set());
  if (!machine.ok()) {
    out.why = machine.error().message;
    return out;
  }
  auto forecast = Forecast(bundle, engine, machine.value(), requests);
  if (!forecast.ok()) {
    out.why = forecast.error().message;
    return out;
  }
  out.forecast = std::move(forecast).value();
  return out;
}

Json ForetoldJson(const Foretold& foretold) {
  Json json = {{"prefill_tokens_per_s", nullptr}, {"decode_tokens_per_s", nullptr}};
  if (foretold.forecast) {
    const plan::ServingForecast& f = *foretold.forecast;
    const auto rate = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
    json["prefill_tokens_per_s"] = rate(f.prefill_tokens_per_s());
    json["decode_tokens_per_s"] = rate(f.decode_tokens_per_s());
    json["ttft_s"] = rate(f.prefill_s);
    json["tpot_s"] = rate(f.tpot_s);
    json["shares_cores"] = f.shares_cores;
    json["system"] = foretold.system;
  } else {
    json["why"] = foretold.why;
  }
  return json;
}

}  // namespace penstock::cli
