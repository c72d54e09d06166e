// Messages between two ranks: threads of this process, and processes under mpirun.

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/json.h"
#include "cli/calibrate.h"
#include "comm/channel.h"

namespace penstock::cli {
namespace {

using comm::Channel;
using comm::Lane;
using comm::LaneKind;

constexpr std::array<int64_t, 6> kSizes = {64, 2304, 16384, 131072, 1048576, 4194304};
constexpr int kSamples = 24;
constexpr int kQuickSamples = 8;
constexpr double kDeadlineS = 20;
// The receiver sleeps for this long before each message, as a stage does while another works.
constexpr auto kPause = std::chrono::microseconds(1500);

Lane DataLane() {
  return {LaneKind::kForward, 0, 1, 0};
}

Lane AnswerLane() {
  return {LaneKind::kResult, 1, 0, 0};
}

int64_t NowNs() {
  return comm::Clock::now().time_since_epoch().count();
}

Result<> OpenLanes(Channel& channel, MemoryAccount& account) {
  PENSTOCK_TRY(channel.Open(DataLane(), {kSizes.back(), 2}, account));
  return channel.Open(AnswerLane(), {64, 2}, account);
}

// Busy, not asleep: what a stage does before it sends.
void Work() {
  const auto end = comm::Clock::now() + kPause;
  while (comm::Clock::now() < end) {
  }
}

// Work of about two milliseconds on one core that leaves memory alone: what a stage does between
// two messages when it decodes.
void Piece() {
  constexpr int kTurns = 500000;
  volatile double sink = 0;
  double x = 1;
  for (int i = 0; i < kTurns; ++i) {
    x = x * 1.0000001 + 1e-9;
  }
  sink = x;
  (void)sink;
}

Result<> SendAll(Channel& channel, int rounds, double* send_s) {
  std::vector<double> small;
  std::vector<std::byte> bytes(static_cast<size_t>(kSizes.back()));
  int64_t step = 0;
  for (const int64_t size : kSizes) {
    for (int i = 0; i < rounds; ++i, ++step) {
      Work();
      const std::span<const std::byte> part(bytes.data(), static_cast<size_t>(size));
      const int64_t start_ns = NowNs();
      PENSTOCK_TRY(channel.Send({DataLane(), {step, 0}, DType::kU8, size, 1, start_ns},
                                std::span(&part, 1), kDeadlineS));
      if (size == kSizes.front()) {
        small.push_back(static_cast<double>(NowNs() - start_ns) * 1e-9);
      }
      PENSTOCK_TRY(channel.Receive(AnswerLane(), {step, 0}, kDeadlineS));
    }
  }
  if (send_s != nullptr) {
    *send_s = Quartile(small);
  }
  return {};
}

// Seconds over bytes.
Result<std::vector<hw::CurvePoint>> ReceiveAll(Channel& channel, int rounds) {
  std::vector<hw::CurvePoint> points;
  std::vector<std::byte> to(static_cast<size_t>(kSizes.back()));
  int64_t step = 0;
  const std::byte nothing{0};
  for (const int64_t size : kSizes) {
    std::vector<double> samples;
    for (int i = 0; i < rounds; ++i, ++step) {
      {
        PENSTOCK_TRY_ASSIGN(const comm::Message message,
                            channel.Receive(DataLane(), {step, 0}, kDeadlineS));
        std::memcpy(to.data(), message.payload().data(), message.payload().size());
        samples.push_back(static_cast<double>(NowNs() - message.header().sent_ns) * 1e-9);
      }
      const std::span<const std::byte> part(&nothing, 1);
      PENSTOCK_TRY(channel.Send({AnswerLane(), {step, 0}, DType::kU8, 1, 1, NowNs()},
                                std::span(&part, 1), kDeadlineS));
    }
    std::sort(samples.begin(), samples.end());
    const double least = samples.front();
    const double quartile = samples[samples.size() / 4];
    // Processes poll with pauses, so that their waits are spread evenly from the least on: the mean
    // lies twice as far from it as the lower quartile, which other work on the machine leaves
    // alone.
    points.push_back({static_cast<double>(size),
                      channel.across_processes() ? least + 2 * (quartile - least) : quartile});
  }
  return points;
}

Result<hw::Curve> CurveOf(std::vector<hw::CurvePoint> points) {
  for (size_t i = 1; i < points.size(); ++i) {
    points[i].y = std::max(points[i].y, points[i - 1].y);
  }
  return hw::Curve::Make(std::move(points), hw::Curve::Scale::kLinear, "measured messages");
}

std::string FindProgram(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    const std::filesystem::path candidate = std::filesystem::path(rest.substr(0, colon)) / name;
    if (::access(candidate.c_str(), X_OK) == 0) {
      return candidate.string();
    }
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return "";
}

// What a command writes to its standard output; nothing where it fails.
std::string OutputOf(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) {
    return "";
  }
  std::string out;
  std::array<char, 4096> buffer{};
  while (out.size() < (1 << 20)) {
    const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe);
    if (n == 0) {
      break;
    }
    out.append(buffer.data(), n);
  }
  return ::pclose(pipe) == 0 ? out : "";
}

std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

}  // namespace

Result<hw::Curve> MeasureThreadMessages(bool quick, double* send_s) {
  const int rounds = quick ? kQuickSamples : kSamples;
  MemoryAccount account;
  auto channels = comm::CreateInProcessChannels(2);
  for (const auto& channel : channels) {
    PENSTOCK_TRY(OpenLanes(*channel, account));
  }
  Result<std::vector<hw::CurvePoint>> points = std::vector<hw::CurvePoint>();
  std::thread receiver([&] {
    points = ReceiveAll(*channels[1], rounds);
    if (!points.ok()) {
      channels[1]->Fail(points.error());
    }
  });
  const Result<> sent = SendAll(*channels[0], rounds, send_s);
  if (!sent.ok()) {
    channels[0]->Fail(sent.error());
  }
  receiver.join();
  PENSTOCK_TRY(sent);
  if (!points.ok()) {
    return points.error();
  }
  return CurveOf(std::move(points).value());
}

Result<double> MeasureHandOver(int ranks, int cores, bool quick) {
  const int laps = quick ? 20 : 60;
  auto channels = comm::CreateInProcessChannels(ranks);
  MemoryAccount account;
  const auto lane = [&](int to) {
    return to == 0 ? Lane{LaneKind::kResult, ranks - 1, 0, 0}
                   : Lane{LaneKind::kForward, to - 1, to, to - 1};
  };
  for (int r = 0; r < ranks; ++r) {
    PENSTOCK_TRY(channels[static_cast<size_t>(r)]->Open(lane(r), {64, ranks}, account));
    PENSTOCK_TRY(
        channels[static_cast<size_t>(r)]->Open(lane((r + 1) % ranks), {64, ranks}, account));
  }
  const int64_t steps = static_cast<int64_t>(laps) * ranks;
  const double piece_s = TimeOf(0.05, [] { Piece(); });
  // As many micro-batches in flight as ranks: rank 0 starts the next one when a result is there.
  const auto turn = [&](int r) -> Result<> {
    Channel& channel = *channels[static_cast<size_t>(r)];
    const std::byte nothing{0};
    const std::span<const std::byte> part(&nothing, 1);
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t awaited = r == 0 ? step - ranks : step;
      if (awaited >= 0) {
        PENSTOCK_TRY(channel.Receive(lane(r), {awaited, 0}, kDeadlineS));
      }
      Piece();
      PENSTOCK_TRY(channel.Send({lane((r + 1) % ranks), {step, 0}, DType::kU8, 1, 1, NowNs()},
                                std::span(&part, 1), kDeadlineS));
    }
    for (int64_t step = steps - ranks; r == 0 && step < steps; ++step) {
      PENSTOCK_TRY(channel.Receive(lane(r), {step, 0}, kDeadlineS));
    }
    return {};
  };
  std::vector<Result<>> results(static_cast<size_t>(ranks));
  const int64_t start_ns = NowNs();
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      results[static_cast<size_t>(r)] = turn(r);
      if (!results[static_cast<size_t>(r)].ok()) {
        channels[static_cast<size_t>(r)]->Fail(results[static_cast<size_t>(r)].error());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Result<>& result : results) {
    PENSTOCK_TRY(result);
  }
  const double seconds = static_cast<double>(NowNs() - start_ns) * 1e-9;
  const auto pieces = static_cast<double>(steps * ranks);
  return std::max(0.0, seconds * std::min(cores, ranks) / pieces - piece_s);
}

int RunMpiProbe(bool quick) {
  const int rounds = quick ? kQuickSamples : kSamples;
  auto channel = comm::CreateMpiChannel();
  if (!channel.ok() || channel.value()->size() != 2) {
    return 3;
  }
  MemoryAccount account;
  int status = 3;
  {
    const std::unique_ptr<Channel> mine = std::move(channel).value();
    if (!OpenLanes(*mine, account).ok()) {
      comm::AbortMpi(3);
    }
    if (mine->rank() == 0) {
      if (!SendAll(*mine, rounds, nullptr).ok()) {
        comm::AbortMpi(3);
      }
      status = 0;
    } else {
      const auto points = ReceiveAll(*mine, rounds);
      if (!points.ok()) {
        comm::AbortMpi(3);
      }
      Json rows = Json::array();
      for (const hw::CurvePoint& point : points.value()) {
        rows.push_back({point.x, point.y});
      }
      fmt::print("{}\n", rows.dump());
      std::fflush(stdout);
      status = 0;
    }
  }
  comm::FinalizeMpi();
  return status;
}

hw::Curve MeasureMpiMessages(bool quick, std::string* why) {
  const std::string mpirun = FindProgram("mpirun");
  if (mpirun.empty()) {
    *why = "no mpirun in PATH";
    return {};
  }
  std::error_code code;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", code).string();
  const std::string root = ::geteuid() == 0 ? " --allow-run-as-root" : "";
  const std::string out = OutputOf(
      fmt::format("{}{} --oversubscribe --bind-to none -n 2 {} calibrate --mpi-probe{} 2>/dev/null",
                  Quoted(mpirun), root, Quoted(self), quick ? " --quick" : ""));
  const Json rows = Json::parse(out, nullptr, false);
  std::vector<hw::CurvePoint> points;
  if (rows.is_array()) {
    for (const Json& row : rows) {
      if (row.is_array() && row.size() == 2 && row[0].is_number() && row[1].is_number()) {
        points.push_back({row[0].get<double>(), row[1].get<double>()});
      }
    }
  }
  if (points.size() != kSizes.size()) {
    *why = "mpirun did not run this program (is it built with MPI?)";
    return {};
  }
  auto curve = CurveOf(std::move(points));
  return curve.ok() ? std::move(curve).value() : hw::Curve();
}

}  // namespace penstock::cli
