#include "cli/model_flags.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/units.h"
#include "cli/engine_planning.h"
#include "comm/meeting_watch.h"
#include "comm/prepare_watch.h"

namespace penstock::cli {
namespace {

volatile std::sig_atomic_t interrupts = 0;

extern "C" void OnInterrupt(int signal) {
  interrupts = interrupts + 1;
  if (interrupts > 1 && signal == SIGINT) {
    ::_exit(130);
  }
}

Result<std::vector<int64_t>> ParseCut(const std::string& text) {
  std::vector<int64_t> cut;
  if (text.empty()) {
    return cut;
  }
  PENSTOCK_TRY_ASSIGN(const std::vector<int32_t> numbers, ParseIds(text, "--cut"));
  if (numbers.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.flags] --cut: got '{}', wanted layers, for instance 10,20", text);
  }
  cut.assign(numbers.begin(), numbers.end());
  return cut;
}

Result<std::optional<DType>> ParseKv(const std::string& text) {
  if (text == "auto") {
    return std::optional<DType>();
  }
  if (text == "f32") {
    return std::optional<DType>(DType::kF32);
  }
  if (text == "bf16") {
    return std::optional<DType>(DType::kBF16);
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "[cli.flags] --kv: got '{}', wanted auto, f32 or bf16", text);
}

// How latent attention is computed: declared for the whole run.
Result<> ApplyLatentAttention(const std::string& mode, model::Graph& graph) {
  if (mode != "plain" && mode != "absorbed") {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.flags] --latent-attention: got '{}', wanted plain or absorbed", mode);
  }
  const bool any = std::any_of(graph.ops.begin(), graph.ops.end(), [](const model::Op& op) {
    return std::holds_alternative<model::LatentAttentionOp>(op.params);
  });
  if (mode == "plain" && !any) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.flags] --latent-attention: got plain, but no layer of the model has "
                     "latent attention; leave the flag out");
  }
  model::SetLatentAttention(graph, mode == "absorbed");
  return {};
}

// Under MPI every rank meets the same bad flag or file; rank 0 says it, the others only if it did
// not. What failed while running is said at once.
int FailOnRank(const Verb& verb, const Error& error, int rank) {
  if (rank > 0) {
    if (ExitStatus(error.code) == 2) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    fmt::print(stderr, "penstock {} (rank {}): {}\n", verb.name(), rank,
               TerminalText(error.message));
    return ExitStatus(error.code);
  }
  return Fail(verb, error);
}

// mpirun throws away what it has not read when a rank aborts: waits until it has read what we
// wrote, at most a second.
void WaitUntilRead(int fd) {
  int unread = 1;
  for (int tries = 0; tries < 100 && ::ioctl(fd, FIONREAD, &unread) == 0 && unread > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// MPI waits for a rank that does not come. The first rank that is there speaks, and mpirun ends the
// others when its process ends; they would look, and speak, a second later.
comm::MeetingLimit EndWhenLate(const Verb& verb, double deadline_s) {
  const double later_s = std::min(comm::LaunchedRank::Mine().rank, 4);
  return {StartDeadline(deadline_s) + later_s, [&verb](const Error& error) {
            fmt::print(stderr, "penstock {}: {}\n", verb.name(), TerminalText(error.message));
            std::fflush(stderr);
            WaitUntilRead(STDERR_FILENO);
            ::_exit(ExitStatus(error.code));
          }};
}

// What crosses, weighed for the cut; nothing to weigh where that is given or there is none.
Result<CrossingWeight> CrossingOf(const serve::ModelBundle& bundle,
                                  const serve::RunOptions& options, comm::Channel* channel) {
  if (!options.cut.empty() || options.stages <= 1) {
    return CrossingWeight();
  }
  CrossingWeight own;
  if (channel == nullptr || channel->rank() == 0) {
    PENSTOCK_TRY_ASSIGN(
        const runtime::WeightRule rule,
        runtime::WeightRule::Create(bundle.model.graph, *bundle.files, options.weights));
    own = DecodeCrossing(MainPrecision(bundle.model.graph, rule), channel != nullptr);
  }
  return AgreeOnCrossing(channel, own, StartDeadline(options.deadline_s));
}

// A rank that is not the first: serves the runs of the verb one after the other.
Result<> RunWorkers(const Verb& verb, const serve::ModelBundle& bundle,
                    const serve::RunOptions& options, std::unique_ptr<comm::Channel> channel,
                    int runs) {
  for (int run = 0; run < runs; ++run) {
    if (run > 0) {
      PENSTOCK_TRY_ASSIGN(channel, NextChannel(verb, options.deadline_s));
    }
    PENSTOCK_TRY(serve::RunWorker(bundle, options, std::move(channel)));
  }
  return {};
}

Result<> RunOnRank(const Verb& verb, const ModelFlags& flags,
                   std::unique_ptr<comm::Channel> channel, const ModelBody& body, int runs) {
  PENSTOCK_TRY_ASSIGN(serve::RunOptions options, ToRunOptions(flags));
  if (channel != nullptr && options.stages == 0 && options.cut.empty()) {
    options.stages = channel->size();
  }
  PENSTOCK_TRY_ASSIGN(serve::ModelBundle bundle, serve::OpenBundle(flags.model));
  PENSTOCK_TRY(ApplyLatentAttention(flags.latent_attention, bundle.model.graph));
  PENSTOCK_TRY_ASSIGN(const CrossingWeight crossing, CrossingOf(bundle, options, channel.get()));
  options.work_per_byte = crossing.work_per_byte;
  options.links_from = crossing.system;
  if (channel != nullptr && channel->rank() > 0) {
    return RunWorkers(verb, bundle, options, std::move(channel), runs);
  }
  const int64_t ranks = options.cut.empty() ? std::max<int64_t>(1, options.stages)
                                            : static_cast<int64_t>(options.cut.size()) + 1;
  if (channel == nullptr && ranks * std::max<int64_t>(1, flags.threads) > kernels::UsableCores() &&
      ranks > 1 && ranks <= bundle.model.graph.num_layers()) {
    LogNote("{} share {}: their times are those of shared cores", Counted(ranks, "stage"),
            Counted(kernels::UsableCores(), "core"));
  }
  if (channel != nullptr) {  // the others wait while this one reads its prompts
    PENSTOCK_TRY_ASSIGN(channel, comm::BeatUntilUsed(std::move(channel), options.deadline_s));
  }
  return body(bundle, options, std::move(channel));
}

}  // namespace

void AbortAll(int status) {
  std::fflush(stdout);
  std::fflush(stderr);
  WaitUntilRead(STDOUT_FILENO);
  WaitUntilRead(STDERR_FILENO);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // and written it
  comm::AbortMpi(status);
}

Flag* AddInteger(Verb& verb, const std::string& name, int64_t& value, const std::string& help,
                 int64_t low, int64_t high) {
  return verb.AddOption(name, value, help)
      ->Check([low, high](const std::string& text) -> std::string {
        int64_t number = 0;
        const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
        if (code != std::errc() || end != text.data() + text.size() || number < low ||
            number > high) {
          return fmt::format("got '{}', wanted an integer from {} to {}", text, low, high);
        }
        return "";
      });
}

void AddModelSection(Verb& verb, ModelFlags& flags) {
  AddCommonFlags(verb, flags.common);
  verb.Heading("Model");
  verb.AddOption("-m,--model", flags.model, "A .gguf file or a folder in Hugging Face layout")
      ->Required()
      ->TypeName("MODEL");
  verb.AddOption("--weights", flags.weights,
                 "How matrices are held and computed: f32, bf16, int8, int4, or auto: the file's "
                 "4-bit types as int4, its 8-bit types as int8, all others as bf16")
      ->TypeName("TYPE")
      ->ShowDefault();
  verb.AddOption("--kv", flags.kv,
                 "Keys and values: f32, bf16, or auto: f32 with --weights f32, else bf16")
      ->TypeName("TYPE")
      ->ShowDefault();
  verb.AddOption("--latent-attention", flags.latent_attention,
                 "Of models that have it: on the cached rows themselves (absorbed) or on keys and "
                 "values expanded again (plain)")
      ->TypeName("MODE")
      ->ShowDefault();
}

void AddPipelineSections(Verb& verb, ModelFlags& flags) {
  constexpr int64_t kMany = int64_t{1} << 20;
  verb.Heading("Pipeline");
  AddInteger(verb, "--stages", flags.stages, "Pipeline stages (default 1, under mpirun its ranks)",
             1, kMany)
      ->TypeName("N");
  verb.AddOption("--cut", flags.cut,
                 "Layers at which new stages start, for instance 10,20 (layer 0 is the embedding); "
                 "default: stages that take the same time")
      ->Check([](const std::string& text) {
        return text.empty() ? std::string("got nothing, wanted layers, for instance 10,20")
                            : std::string();
      })
      ->TypeName("LIST");
  AddInteger(verb, "--groups", flags.groups, "Groups of sequences in flight (default: the stages)",
             1, 4096)
      ->TypeName("G");
  AddInteger(verb, "--threads", flags.threads,
             "Threads per stage (default: cores / stages, at least 1)", 1, 4096)
      ->TypeName("N");
  AddInteger(verb, "--prefill-chunk", flags.prefill_chunk,
             "Tokens of a prompt per micro-batch (default: the prompt's length in a few chunks per "
             "stage, at most 512)",
             1, 65536)
      ->TypeName("N");
  verb.Heading("Memory and time");
  AddInteger(verb, "--context", flags.context,
             "Most positions of a sequence (default: the model's, at most 4096)", 1,
             int64_t{1} << 40)
      ->TypeName("N");
  verb.AddOption("--memory", flags.memory,
                 "Bytes that each rank may use, for instance 2GiB (default: what is available, "
                 "divided by the ranks of this machine)")
      ->TypeName("BYTES");
  verb.AddOption("--deadline", flags.deadline_s,
                 "Seconds that a stage waits for another before the run fails")
      ->TypeName("S")
      ->ShowDefault();
  verb.Heading(kFlagsHeading);
}

void AddModelFlags(Verb& verb, ModelFlags& flags) {
  AddModelSection(verb, flags);
  AddPipelineSections(verb, flags);
}

Result<int64_t> ReadMemoryLimit(const std::string& text) {
  if (text.empty()) {
    return 0;
  }
  PENSTOCK_TRY_ASSIGN(const int64_t bytes, ParseBytes(text, "--memory"));
  if (bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "[cli.flags] --memory: got 0 bytes, wanted more");
  }
  return bytes;
}

Result<double> ReadDeadline(double seconds) {
  if (!(seconds >= 0.01 && seconds <= 86400)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.flags] --deadline: got {}, wanted 0.01 to 86400 seconds", seconds);
  }
  return seconds;
}

double StartDeadline(double deadline_s) {
  constexpr double kApartS = 5;
  const Result<double> deadline = ReadDeadline(deadline_s);
  return kApartS + (deadline.ok() ? deadline.value() : 30.0);
}

Result<serve::RunOptions> ToRunOptions(const ModelFlags& flags) {
  serve::RunOptions options;
  options.stages = flags.stages;
  PENSTOCK_TRY_ASSIGN(options.cut, ParseCut(flags.cut));
  options.groups = flags.groups;
  options.threads = static_cast<int>(flags.threads);
  PENSTOCK_TRY_ASSIGN(options.weights, runtime::ParseWeightChoice(flags.weights));
  PENSTOCK_TRY_ASSIGN(options.kv_type, ParseKv(flags.kv));
  options.context = flags.context;
  options.prefill_chunk = flags.prefill_chunk;
  PENSTOCK_TRY_ASSIGN(options.memory_bytes, ReadMemoryLimit(flags.memory));
  PENSTOCK_TRY_ASSIGN(options.deadline_s, ReadDeadline(flags.deadline_s));
  return options;
}

Result<std::vector<int32_t>> ParseIds(const std::string& text, const std::string& what) {
  std::vector<int32_t> ids;
  const auto separator = [](char c) {
    return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r';
  };
  size_t at = 0;
  while (at < text.size()) {
    if (separator(text[at])) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < text.size() && !separator(text[end])) {
      ++end;
    }
    int32_t id = 0;
    const auto [stop, code] = std::from_chars(text.data() + at, text.data() + end, id);
    if (code != std::errc() || stop != text.data() + end || id < 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.flags] {}: got '{}', wanted numbers from 0 on, separated by commas",
                       what, text.substr(at, std::min<size_t>(end - at, 40)));
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

int RunRankedVerb(const Verb& verb, double deadline_s, const RankedBody& body) {
  std::unique_ptr<comm::Channel> channel;
  int rank = 0;
  const bool mpi = comm::LaunchedByMpi();
  if (mpi) {
    auto created = comm::CreateMpiChannel(EndWhenLate(verb, deadline_s));
    if (!created.ok()) {
      return Fail(verb, created.error());
    }
    channel = std::move(created).value();
    rank = channel->rank();
  }
  CatchInterrupts();
  const Result<> result = body(std::move(channel));
  if (!result.ok()) {
    if (mpi) {
      comm::TellMpiRanksOfFailure();
    }
    const int status = FailOnRank(verb, result.error(), rank);
    if (mpi) {
      AbortAll(status);
    }
    return status;
  }
  comm::FinalizeMpi(EndWhenLate(verb, deadline_s));
  return 0;
}

Result<std::unique_ptr<comm::Channel>> NextChannel(const Verb& verb, double deadline_s) {
  if (!comm::LaunchedByMpi()) {
    return std::unique_ptr<comm::Channel>();
  }
  PENSTOCK_TRY_ASSIGN(auto channel, comm::CreateMpiChannel(EndWhenLate(verb, deadline_s)));
  return channel->rank() > 0 ? std::move(channel)
                             : comm::BeatUntilUsed(std::move(channel), deadline_s);
}

int RunModelVerb(const Verb& verb, const ModelFlags& flags, const ModelBody& body, int runs) {
  return RunRankedVerb(verb, flags.deadline_s, [&](std::unique_ptr<comm::Channel> channel) {
    return RunOnRank(verb, flags, std::move(channel), body, runs);
  });
}

int RunRankVerb(const Verb& verb, double deadline_s, const RankBody& body) {
  MemoryAccount account;
  return RunRankedVerb(verb, deadline_s, [&](std::unique_ptr<comm::Channel> channel) {
    return body(channel.get(), account);
  });
}

serve::LoadProgress LoadProgressBar() {
  if (::isatty(STDERR_FILENO) == 0) {
    return nullptr;
  }

  struct State {
    std::mutex mutex;
    std::vector<std::pair<int64_t, int64_t>> ranks;  // loaded, total
    std::chrono::steady_clock::time_point shown{};
  };

  auto state = std::make_shared<State>();
  return [state](int32_t rank, int64_t bytes, int64_t total) {
    const std::lock_guard lock(state->mutex);
    state->ranks.resize(std::max(state->ranks.size(), static_cast<size_t>(rank) + 1));
    state->ranks[static_cast<size_t>(rank)] = {bytes, total};
    const auto now = std::chrono::steady_clock::now();
    if (now - state->shown < std::chrono::milliseconds(100) && bytes < total) {
      return;
    }
    state->shown = now;
    const auto percent = [](int64_t done, int64_t all) { return all > 0 ? done * 100 / all : 100; };
    std::string line = "loading";
    std::pair<int64_t, int64_t> sum;
    for (size_t r = 0; r < state->ranks.size(); ++r) {
      const auto [done, all] = state->ranks[r];
      line += fmt::format("  stage {} {:3d} %", r, percent(done, all));
      sum = {sum.first + done, sum.second + all};
    }
    if (static_cast<int>(line.size()) >= TerminalWidth()) {  // it could not be taken back
      line = fmt::format("loading {} %", percent(sum.first, sum.second));
    }
    fmt::print(stderr, "\r{}\x1b[K", line);
    if (std::all_of(state->ranks.begin(), state->ranks.end(),
                    [](const auto& r) { return r.first >= r.second; })) {
      fmt::print(stderr, "\r\x1b[K");
    }
    std::fflush(stderr);
  };
}

void CatchInterrupts() {
  struct sigaction action {};

  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGUSR1, &action, nullptr);  // what mpirun hands on; scripts/mpirun's Ctrl-C
  std::signal(SIGPIPE, SIG_IGN);
}

bool Interrupted() {
  return interrupts > 0;
}

void Interrupt() {
  interrupts = interrupts + 1;
}

Error InterruptedError() {
  return MakeError(ErrorCode::kInterrupted, "[cli] interrupted");
}

}  // namespace penstock::cli
