// penstock calibrate: measures this machine and writes a system file.

#include "cli/calibrate.h"

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/engine_planning.h"
#include "cli/model_flags.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "hw/system.h"
#include "serve/run_setup.h"

namespace penstock::cli {
namespace {

using kernels::WeightType;

struct Flags {
  CommonFlags common;
  std::string output;
  std::string model;
  int64_t threads = 1;
  bool quick = false;
  bool mpi_probe = false;
};

// Layers of models of 135 million to some billions of parameters: outputs, inputs.
constexpr std::pair<int64_t, int64_t> kCommonShapes[] = {
    {960, 576},   {576, 576},    {3072, 576},  {576, 1536},   {49152, 576}, {3072, 2048},
    {2048, 2048}, {16384, 2048}, {2048, 8192}, {32000, 2048}, {8192, 8192}};

constexpr AttentionShape kCommonAttention[] = {
    {8, 8, 64}, {9, 3, 64}, {32, 8, 64}, {32, 8, 128}, {32, 4, 128}};

std::vector<ProductShape> CommonProducts(bool quick) {
  std::vector<ProductShape> shapes;
  for (const WeightType type :
       {WeightType::kInt8, WeightType::kInt4, WeightType::kBF16, WeightType::kF32}) {
    const bool few = quick || type == WeightType::kF32;
    for (const auto& [outputs, inputs] : kCommonShapes) {
      if (few && (outputs > 20000 || inputs == outputs)) {
        continue;
      }
      shapes.push_back({type, outputs, inputs});
    }
  }
  return shapes;
}

// What the layers of a model multiply, as the engine packs them.
Result<> TakeModel(const std::string& path, std::vector<ProductShape>& products,
                   std::vector<AttentionShape>& attention) {
  PENSTOCK_TRY_ASSIGN(const serve::ModelBundle bundle, serve::OpenBundle(path));
  const model::Graph& graph = bundle.model.graph;
  PENSTOCK_TRY_ASSIGN(
      const runtime::WeightRule rule,
      runtime::WeightRule::Create(graph, *bundle.files, runtime::WeightChoice::kAuto));
  std::set<std::tuple<WeightType, int64_t, int64_t>> seen;
  std::set<std::tuple<int64_t, int64_t, int64_t>> heads;
  for (const model::Op& op : graph.ops) {
    if (const auto* linear = std::get_if<model::LinearOp>(&op.params)) {
      size_t begin = 0;
      for (const size_t end : runtime::PackGroups(*linear, rule)) {
        int64_t outputs = 0;
        for (size_t i = begin; i < end; ++i) {
          outputs += graph.tensor(linear->weights[i]).shape[0];
        }
        const TensorId first = linear->weights[begin];
        seen.insert({rule.held(first).type, outputs, graph.tensor(first).shape[1]});
        begin = end;
      }
    } else if (const auto* moe = std::get_if<model::MoeOp>(&op.params)) {
      const auto& up = graph.tensor(moe->up[0]).shape;
      seen.insert({rule.held(moe->up[0]).type, 2 * up[0], up[1]});
      seen.insert({rule.held(moe->down[0]).type, up[1], up[0]});
    } else if (const auto* a = std::get_if<model::AttentionOp>(&op.params)) {
      heads.insert({a->heads, a->kv_heads, a->head_dim});
    }
  }
  for (const auto& [type, outputs, inputs] : seen) {
    products.push_back({type, outputs, inputs});
  }
  for (const auto& [all, keys, dim] : heads) {
    attention.push_back({all, keys, dim});
  }
  return {};
}

std::string CpuName() {
  const auto text = ReadFile("/proc/cpuinfo", 1 << 20);
  if (text.ok()) {
    const size_t at = text->find("model name");
    const size_t colon = at == std::string::npos ? at : text->find(':', at);
    if (colon != std::string::npos) {
      return text->substr(colon + 2, text->find('\n', colon) - colon - 2);
    }
  }
  return "unknown processor";
}

std::string HostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "machine";
}

// Quotes and control characters out of a text that a TOML string will hold.
std::string Plain(std::string text) {
  for (char& c : text) {
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 32) {
      c = ' ';
    }
  }
  return text;
}

double InstalledMemory() {
  struct sysinfo info {};

  double total = 1e9;
  if (::sysinfo(&info) == 0) {
    total = static_cast<double>(info.totalram) * info.mem_unit;
  }
  return std::min(
      total,
      static_cast<double>(std::max<int64_t>(AvailableMemoryBytes(), int64_t{1} << 28)) / 0.9);
}

// The best rates that any measured product reached: what the classical fields of a system file say.
struct Best {
  std::map<hw::Precision, double> flops;
  double alone_bytes = 0;
  double together_bytes = 0;  // of all devices
};

Best BestOf(const hw::Engine& engine) {
  Best best;
  for (const hw::ProductTable& t : engine.products) {
    const double weights = t.outputs * t.inputs;
    double& flops = best.flops[t.weights];
    for (const hw::CurvePoint& point : t.alone_s.points()) {
      flops = std::max(flops, 2 * point.x * weights / point.y);
    }
    const double bytes = weights * (hw::PrecisionBytes(t.weights) + hw::BlockScaleBytes(t.weights));
    best.alone_bytes = std::max(best.alone_bytes, bytes / t.alone_s.At(1));
    best.together_bytes = std::max(
        best.together_bytes, static_cast<double>(engine.devices()) * bytes / t.together_s.At(1));
  }
  return best;
}

std::string SystemText(const hw::Engine& engine, const Best& best, const std::string& made) {
  const double memory = InstalledMemory() / static_cast<double>(engine.devices());
  const double small = engine.message_s.At(1);
  const double large = engine.message_s.At(1e6) - small;
  std::string out = fmt::format(
      "title = \"{} as one device per {} thread{}\"\nprovenance = \"{}\"\n\n[device]\nname = "
      "\"{}\"\nmemory_bytes = {:.0f}\nmemory_reserve_bytes = {:.0f}\nmemory_bandwidth_bytes_per_s "
      "= {:.4e}  # one device alone; all {} together {:.4e}\nsource = \"measured: weights read by "
      "products of one row; memory is what the system had free, divided by the devices\"\n\n"
      "[device.peak_flops_per_s]  # the most that a product reached\n",
      Plain(HostName()), engine.threads, engine.threads == 1 ? "" : "s", made, Plain(CpuName()),
      memory, 0.05 * memory, best.alone_bytes, engine.devices(), best.together_bytes);
  for (const auto& [precision, flops] : best.flops) {
    out += fmt::format("{} = {:.4e}\n", hw::PrecisionName(precision), flops);
  }
  out += fmt::format(
      "\n[[link]]\nname = \"messages between devices of this machine\"\nlatency_s = {:.4e}\n"
      "bandwidth_bytes_per_s = {:.4e}\nsource = \"measured between threads\"\n\n[inference]\n"
      "matrix_efficiency = 1.0\nmemory_efficiency = 1.0\nfixed_per_step_s = {:.4e}\nsource = "
      "\"measured: see [engine]\"\n\n[training]\nmatrix_efficiency = 1.0\nmemory_efficiency = "
      "1.0\nsource = \"measured: see [engine]\"\n\n",
      small, large > 0 ? 1e6 / large : 1e11, engine.step_s);
  return out + hw::FormatEngine(engine);
}

std::string Made(const hw::Engine& engine) {
  const std::time_t now = std::time(nullptr);
  return fmt::format("penstock {} calibrate, {:%Y-%m-%d %H:%M} UTC, {}, {}, {} usable cores",
                     PENSTOCK_VERSION, fmt::gmtime(now), Plain(CpuName()), engine.instruction_set,
                     engine.cores);
}

void Say(const Flags& flags, const std::string& what) {
  if (!flags.common.json) {
    fmt::print(stderr, "{}\n", what);
  }
}

// Over the number of stages that share the cores: one more than there are, and twice as many.
Result<hw::Curve> HandOvers(int cores, bool quick) {
  std::vector<hw::CurvePoint> points;
  for (const int ranks : {cores + 1, std::max(2 * cores, cores + 2)}) {
    std::vector<double> samples;
    for (int i = 0; i < (quick ? 1 : 5); ++i) {
      PENSTOCK_TRY_ASSIGN(const double seconds, MeasureHandOver(ranks, cores, quick));
      samples.push_back(seconds);
    }
    points.push_back({static_cast<double>(ranks), Quartile(std::move(samples))});
  }
  return hw::Curve::Make(std::move(points), hw::Curve::Scale::kLogX, "measured hand-overs");
}

Result<hw::Engine> Measure(const Flags& flags, std::string* mpi) {
  hw::Engine engine;
  engine.version = PENSTOCK_VERSION;
  engine.threads = flags.threads;
  engine.cores = kernels::UsableCores();
  kernels::CpuOptions cpu;
  cpu.threads = static_cast<int>(flags.threads);
  PENSTOCK_TRY_ASSIGN(const auto device, kernels::CreateCpuDevice(cpu));
  engine.instruction_set = device->InstructionSet();
  MeasureOptions options;
  options.threads = static_cast<int>(flags.threads);
  options.devices = static_cast<int>(engine.devices());
  options.quick = flags.quick;
  options.sample_s = flags.quick ? 0.005 : 0.04;
  std::vector<ProductShape> products;
  std::vector<AttentionShape> attention;
  if (!flags.model.empty()) {
    PENSTOCK_TRY(TakeModel(flags.model, products, attention));
    // What the remaining time is worked out from.
    for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{960, 576},
                                          {3072, 576},
                                          {576, 1536},
                                          {3072, 2048},
                                          {2048, 2048},
                                          {16384, 2048},
                                          {2048, 8192}}) {
      products.push_back({WeightType::kInt8, outputs, inputs});
    }
    attention.push_back({9, 3, 64});
    attention.push_back({32, 8, 64});
  } else {
    products = CommonProducts(flags.quick);
    attention.assign(std::begin(kCommonAttention), std::end(kCommonAttention));
  }
  const bool terminal = ::isatty(STDERR_FILENO) != 0 && !flags.common.json;
  Say(flags, fmt::format("matrix products: {} shapes x 10 numbers of rows, one device of {} "
                         "threads alone and {} together",
                         products.size(), options.threads, options.devices));
  PENSTOCK_TRY_ASSIGN(engine.products,
                      MeasureProducts(products, options, [&](const std::string& what, double part) {
                        if (terminal) {
                          fmt::print(stderr, "\r{:3.0f} %  {}\x1b[K", 100 * part, what);
                        }
                      }));
  if (terminal) {
    fmt::print(stderr, "\r\x1b[K");
  }
  Say(flags, "attention");
  PENSTOCK_TRY_ASSIGN(engine.attention, MeasureAttention(attention, options));
  Say(flags, "threads");
  PENSTOCK_TRY_ASSIGN(engine.thread_speedup,
                      MeasureThreadScaling({WeightType::kInt8, 3072, 576},
                                           static_cast<int>(engine.cores), options));
  PENSTOCK_TRY_ASSIGN(engine.sharing, MeasureSharing({WeightType::kInt8, 3072, 576}, options));
  Say(flags, "messages between threads, and between processes");
  PENSTOCK_TRY_ASSIGN(engine.message_s, MeasureThreadMessages(flags.quick, &engine.announce_s));
  if (engine.threads == 1) {
    PENSTOCK_TRY_ASSIGN(engine.hand_over_s, HandOvers(static_cast<int>(engine.cores), flags.quick));
  }
  engine.mpi_message_s = MeasureMpiMessages(flags.quick, mpi);
  if (engine.mpi_message_s.empty()) {
    LogNote("messages between processes are not measured: {}", *mpi);
  }
  Say(flags, "whole steps of random models");
  PENSTOCK_TRY(MeasureRest(options, engine));
  return engine;
}

Result<> Calibrate(const Flags& flags) {
  const auto start = std::chrono::steady_clock::now();
  const std::string path = flags.output.empty() ? CalibratedPath() : flags.output;
  if (path.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.calibrate] no home folder to write to, wanted -o FILE");
  }
  if (flags.threads > kernels::UsableCores()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.calibrate] --threads {}: this process may use {}, wanted 1 to {}",
                     flags.threads, Counted(kernels::UsableCores(), "core"),
                     kernels::UsableCores());
  }
  std::error_code code;
  if (const auto parent = std::filesystem::path(path).parent_path(); !parent.empty()) {
    std::filesystem::create_directories(parent, code);
  }
  PENSTOCK_TRY(CheckWritable(path));  // before the minutes of measuring
  std::string mpi;
  PENSTOCK_TRY_ASSIGN(hw::Engine engine, Measure(flags, &mpi));
  const std::string made = Made(engine);
  engine.source = made;
  const Best best = BestOf(engine);
  const std::string text = SystemText(engine, best, made);
  // What is written must be readable.
  PENSTOCK_TRY_ASSIGN(const TomlTable table, ParseToml(text, path));
  PENSTOCK_TRY_ASSIGN(const hw::System system, hw::ParseSystem(table, "calibrated"));
  PENSTOCK_TRY(WriteFileAtomically(path, text));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Json json = {{"system", path},
               {"seconds_s", seconds},
               {"provenance", made},
               {"threads", engine.threads},
               {"cores", engine.cores},
               {"devices", engine.devices()},
               {"memory_bytes_per_s", best.alone_bytes},
               {"memory_together_bytes_per_s", best.together_bytes},
               {"message_s", engine.message_s.At(1)},
               {"mpi_message_s",
                engine.mpi_message_s.empty() ? Json(nullptr) : Json(engine.mpi_message_s.At(1))},
               {"step_s", engine.step_s},
               {"peak_flops_per_s", Json::object()}};
  for (const auto& [precision, flops] : best.flops) {
    json["peak_flops_per_s"][std::string(hw::PrecisionName(precision))] = flops;
  }
  if (flags.common.json) {
    PrintJson(json);
    return {};
  }
  for (const auto& [precision, flops] : best.flops) {
    fmt::print("{:>6}  {:8.0f} GFLOP/s at most\n", hw::PrecisionName(precision), flops * 1e-9);
  }
  fmt::print("memory  {:8.1f} GB/s one device, {:.1f} GB/s all {} together\n",
             best.alone_bytes * 1e-9, best.together_bytes * 1e-9, engine.devices());
  fmt::print("message {:>9} between threads{}\n", FormatSeconds(engine.message_s.At(1)),
             engine.mpi_message_s.empty() ? ""
                                          : fmt::format(", {} between processes",
                                                        FormatSeconds(engine.mpi_message_s.At(1))));
  fmt::print("step    {:>9} beside its operations\n", FormatSeconds(engine.step_s));
  fmt::print("written to {} after {}\n", path, FormatSeconds(seconds));
  return {};
}

}  // namespace

void AddCalibrate(Verb& app, int& status) {
  auto flags = std::make_shared<Flags>();
  Verb* verb = app.AddVerb("calibrate",
                           "Measure this machine and write a system file for plan, run and bench");
  AddCommonFlags(*verb, flags->common);
  verb->AddOption("-o,--output", flags->output,
                  "The file to write (default: where run and bench look, $PENSTOCK_SYSTEM or "
                  "~/.config/penstock/system.toml)")
      ->TypeName("FILE");
  verb->AddOption("--threads", flags->threads, "Threads of one device")
      ->Range(1, 4096)
      ->ShowDefault()
      ->TypeName("N");
  verb->AddOption("-m,--model", flags->model,
                  "Measure the products of this model's layers instead of common ones")
      ->TypeName("MODEL");
  verb->AddFlag("--quick", flags->quick, "A fifth of the time, less exact");
  verb->AddFlag("--mpi-probe", flags->mpi_probe, "One of two processes that measure messages")
      ->Hide();
  verb->Remark("Takes one to three minutes; leave the machine to itself meanwhile.");
  verb->Examples({"penstock calibrate",
                  "penstock plan -m model.gguf -s ~/.config/penstock/system.toml --devices 2"});
  verb->Callback([flags, verb, &status] {
    if (flags->mpi_probe) {
      status = RunMpiProbe(flags->quick);
      return;
    }
    const Result<> result = Calibrate(*flags);
    status = result.ok() ? 0 : Fail(*verb, result.error());
  });
}

}  // namespace penstock::cli
