#include "trace/chrome.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "base/file.h"
#include "base/json.h"
#include "schedule/schedule.h"

namespace penstock::trace {
namespace {

using schedule::Action;
using schedule::Edge;
using schedule::OpKind;

constexpr double kMicro = 1e6;
constexpr double kInside = 1e-9;  // seconds by which an arrow's end lies inside its slice
constexpr size_t kPiece = size_t{1} << 16;
constexpr int64_t kMostRanks = 65536;

// Names of long values, for the texts of actions.
std::vector<Edge> EdgesOf(const std::vector<std::string>& values) {
  std::vector<Edge> edges;
  for (const std::string& name : values)
    edges.push_back({name, schedule::EdgeKind::kValue, StageId(0), {}, 0});
  return edges;
}

std::string Quoted(std::string_view text) {
  return DumpJson(Json(std::string(text)));
}

// What a compute action reads or a message brings, as one number.
uint64_t ReaderKey(bool backward, const StageId& stage, const Action& action, int step) {
  uint64_t key = static_cast<uint32_t>(step);
  key = key << 20 ^ static_cast<uint32_t>(action.micro_batch.value());
  key = key << 8 ^ action.slice;
  key = key << 16 ^ static_cast<uint32_t>(stage.value());
  return key << 1 ^ static_cast<uint64_t>(backward);
}

class ChromeWriter {
 public:
  ChromeWriter(const Timeline& timeline, const TextSink& sink)
      : timeline_(timeline), sink_(sink), edges_(EdgesOf(timeline.values)) {}

  void Write() {
    Header();
    for (size_t r = 0; r < timeline_.ranks.size(); ++r)
      Rank(r);
    text_ += "\n]}\n";
    sink_(text_);
  }

 private:
  void Header() {
    Json other{{"name", timeline_.name},
               {"measured", timeline_.measured},
               {"instruction_set", timeline_.instruction_set},
               {"threads_per_rank", timeline_.threads_per_rank},
               {"begin_s", timeline_.begin_s},
               {"end_s", timeline_.end_s},
               {"values", timeline_.values}};
    text_ += fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\n\"traceEvents\":[",
                         DumpJson(other));
    Event(fmt::format(R"({{"ph":"M","pid":0,"name":"process_name","args":{{"name":{}}}}})",
                      Quoted(timeline_.name)));
    for (size_t r = 0; r < timeline_.ranks.size(); ++r) {
      Event(
          fmt::format(R"({{"ph":"M","pid":0,"tid":{},"name":"thread_name","args":{{"name":{}}}}})",
                      r, Quoted(timeline_.ranks[r].name)));
      Event(fmt::format(
          R"({{"ph":"M","pid":0,"tid":{0},"name":"thread_sort_index","args":{{"sort_index":{0}}}}})",
          r));
    }
  }

  void Rank(size_t r) {
    const RankTimeline& rank = timeline_.ranks[r];
    readers_.clear();
    if (!rank.received.empty()) {
      for (const Slice& slice : rank.slices) {
        if (schedule::IsCompute(slice.action.kind) &&
            slice.action.kind != OpKind::kBackwardWeight) {
          readers_.try_emplace(ReaderKey(schedule::IsBackward(slice.action.kind),
                                         slice.action.stage, slice.action, slice.step),
                               slice.start_s);
        }
      }
    }
    for (const Slice& slice : rank.slices)
      WriteSlice(r, slice);
    for (const Wait& wait : rank.waits)
      WriteWait(r, wait);
    for (const Message& message : rank.received)
      WriteMessage(message);
    for (const Counter& counter : rank.counters) {
      for (const Counter::Sample& sample : counter.samples) {
        Event(
            fmt::format(R"({{"ph":"C","pid":0,"tid":{},"name":{},"ts":{:.4f},"args":{{"{}":{}}}}})",
                        r, Quoted(fmt::format("{}, {}", counter.name, rank.name)),
                        sample.at_s * kMicro, counter.unit, sample.value));
      }
    }
  }

  void WriteSlice(size_t r, const Slice& slice) {
    std::string args = fmt::format(R"("step":{})", slice.step);
    if (slice.rows != 0)
      args += fmt::format(R"(,"rows":{})", slice.rows);
    if (slice.bytes != 0)
      args += fmt::format(R"(,"bytes":{})", slice.bytes);
    if (slice.action.joined)
      args += R"(,"joined":true)";
    Event(fmt::format(
        R"({{"ph":"X","pid":0,"tid":{},"cat":"{}","name":{},"ts":{:.4f},"dur":{:.4f},"args":{{{}}}}})",
        r, schedule::OpKindText(slice.action.kind),
        Quoted(schedule::ActionText(slice.action, edges_)), slice.start_s * kMicro,
        (slice.end_s - slice.start_s) * kMicro, args));
  }

  void WriteWait(size_t r, const Wait& wait) {
    const std::string awaited = schedule::ActionText(wait.awaited, edges_);
    Event(fmt::format(
        R"({{"ph":"X","pid":0,"tid":{},"cat":"wait","name":{},"ts":{:.4f},"dur":{:.4f},)"
        R"("args":{{"cause":"{}","awaited":{},"rank":{}}}}})",
        r, Quoted("wait: " + awaited), wait.start_s * kMicro, (wait.end_s - wait.start_s) * kMicro,
        WaitCauseText(wait.cause), Quoted(awaited), wait.awaited_rank.value()));
  }

  void WriteMessage(const Message& message) {
    const std::string name = Quoted(schedule::ActionText(message.action, edges_));
    const bool backward = message.action.kind == OpKind::kSendBackward;
    double read_s = message.arrived_s;
    const auto it = readers_.find(
        ReaderKey(backward, schedule::PeerStage(message.action), message.action, message.step));
    if (it != readers_.end())
      read_s = std::max(read_s, it->second);
    ++flow_;
    Event(fmt::format(
        R"({{"ph":"s","pid":0,"tid":{},"cat":"message","id":{},"name":{},"ts":{:.4f},)"
        R"("args":{{"to":{},"step":{},"sent":{:.4f},"arrived":{:.4f},"bytes":{}}}}})",
        message.from.value(), flow_, name, (message.sent_s - kInside) * kMicro, message.to.value(),
        message.step, message.sent_s * kMicro, message.arrived_s * kMicro, message.bytes));
    Event(fmt::format(
        R"({{"ph":"f","bp":"e","pid":0,"tid":{},"cat":"message","id":{},"name":{},"ts":{:.4f}}})",
        message.to.value(), flow_, name, (read_s + kInside) * kMicro));
  }

  void Event(std::string_view event) {
    text_ += first_ ? "\n" : ",\n";
    first_ = false;
    text_ += event;
    if (text_.size() > kPiece) {
      sink_(text_);
      text_.clear();
    }
  }

  const Timeline& timeline_;
  const TextSink& sink_;
  std::vector<Edge> edges_;
  std::string text_;
  bool first_ = true;
  int64_t flow_ = 0;
  std::unordered_map<uint64_t, double> readers_;  // of this rank: start of the reading slice
};

}  // namespace

void WriteChromeTrace(const Timeline& timeline, const TextSink& sink) {
  ChromeWriter(timeline, sink).Write();
}

Result<> WriteChromeTraceFile(const Timeline& timeline, const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"),
                                                             &std::fclose);
  if (file == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[trace.chrome] {} can't be written, wanted a file in a folder that exists",
                     path);
  }
  bool good = true;
  WriteChromeTrace(timeline, [&](std::string_view piece) {
    good = good && std::fwrite(piece.data(), 1, piece.size(), file.get()) == piece.size();
  });
  if (!good || std::fflush(file.get()) != 0)
    return MakeError(ErrorCode::kInternal, "[trace.chrome] {}: writing failed: {}", path,
                     std::strerror(errno));
  return {};
}

namespace {

class ChromeReader {
 public:
  explicit ChromeReader(const std::string& source) : source_(source) {}

  Result<Timeline> Read(const Json& root) {
    if (!root.is_object() || !root.contains("traceEvents") || !root["traceEvents"].is_array())
      return Wrong("no array traceEvents");
    if (root.contains("otherData") && root["otherData"].is_object())
      PENSTOCK_TRY(ReadHeader(root["otherData"]));
    const Json& events = root["traceEvents"];
    for (size_t i = 0; i < events.size(); ++i) {
      if (!events[i].is_object())
        return Wrong(fmt::format("event {} is no object", i));
      PENSTOCK_TRY(ReadEvent(events[i], i));
    }
    if (timeline_.CountSlices() == 0)
      return Wrong("no action in it");
    Finish();
    return std::move(timeline_);
  }

 private:
  Error Wrong(std::string_view what) const {
    return MakeError(ErrorCode::kCorruptData,
                     "[trace.chrome] {}: {}, wanted a trace that penstock wrote", source_, what);
  }

  Result<> ReadHeader(const Json& other) {
    const JsonReader reader(other, source_ + ": otherData");
    PENSTOCK_TRY_ASSIGN(timeline_.name, reader.StringOr("name", ""));
    PENSTOCK_TRY_ASSIGN(timeline_.measured, reader.BoolOr("measured", false));
    PENSTOCK_TRY_ASSIGN(timeline_.instruction_set, reader.StringOr("instruction_set", ""));
    PENSTOCK_TRY_ASSIGN(const int64_t threads, reader.IntOr("threads_per_rank", 0, 0, 65536));
    timeline_.threads_per_rank = static_cast<int>(threads);
    PENSTOCK_TRY_ASSIGN(timeline_.begin_s, reader.NumberOr("begin_s", 0, -1e15, 1e15));
    PENSTOCK_TRY_ASSIGN(timeline_.end_s, reader.NumberOr("end_s", 0, -1e15, 1e15));
    has_window_ = other.contains("begin_s") && other.contains("end_s");
    if (other.contains("values") && other["values"].is_array()) {
      for (const Json& name : other["values"]) {
        if (!name.is_string() || timeline_.values.size() >= 65535)
          return Wrong("otherData.values is no list of names");
        timeline_.values.push_back(name.get<std::string>());
      }
    }
    edges_ = EdgesOf(timeline_.values);
    return {};
  }

  Result<> ReadEvent(const Json& event, size_t index) {
    const JsonReader reader(event, fmt::format("{}: event {}", source_, index));
    PENSTOCK_TRY_ASSIGN(const std::string phase, reader.StringOr("ph", ""));
    if (phase != "X" && phase != "s" && phase != "M")
      return {};
    PENSTOCK_TRY_ASSIGN(const int64_t tid, reader.IntOr("tid", 0, 0, kMostRanks - 1));
    PENSTOCK_TRY_ASSIGN(const std::string name, reader.StringOr("name", ""));
    const Json empty = Json::object();
    const Json* args = reader.Find("args");
    const JsonReader details(args != nullptr && args->is_object() ? *args : empty,
                             reader.where() + ": args");
    if (phase == "M") {
      if (name == "thread_name") {
        PENSTOCK_TRY_ASSIGN(RankOf(tid).name, details.StringOr("name", ""));
      }
      return {};
    }
    PENSTOCK_TRY_ASSIGN(const std::string category, reader.StringOr("cat", ""));
    if (phase == "s")
      return category == "message" ? ReadMessage(details, tid, name) : Result<>();
    PENSTOCK_TRY_ASSIGN(const double start, reader.Number("ts", -1e18, 1e18));
    PENSTOCK_TRY_ASSIGN(const double duration, reader.NumberOr("dur", 0, 0, 1e18));
    const double start_s = start / kMicro;
    const double end_s = (start + duration) / kMicro;
    if (category == "wait")
      return ReadWait(details, tid, start_s, end_s);
    auto action = schedule::ParseAction(name, edges_);
    if (!action.ok())
      return {};  // of another tool
    Slice slice;
    slice.action = action.value();
    slice.start_s = start_s;
    slice.end_s = end_s;
    PENSTOCK_TRY_ASSIGN(const int64_t step, details.IntOr("step", 0, 0, INT32_MAX));
    PENSTOCK_TRY_ASSIGN(const int64_t rows, details.IntOr("rows", 0, 0, INT32_MAX));
    PENSTOCK_TRY_ASSIGN(slice.bytes, details.IntOr("bytes", 0, 0, INT64_MAX));
    PENSTOCK_TRY_ASSIGN(slice.action.joined, details.BoolOr("joined", false));
    slice.step = static_cast<int32_t>(step);
    slice.rows = static_cast<int32_t>(rows);
    RankOf(tid).slices.push_back(slice);
    return {};
  }

  Result<> ReadWait(const JsonReader& details, int64_t tid, double start_s, double end_s) {
    Wait wait;
    wait.start_s = start_s;
    wait.end_s = end_s;
    PENSTOCK_TRY_ASSIGN(const std::string cause, details.StringOr("cause", "other"));
    for (int i = 0; i < kWaitCauseCount; ++i) {
      if (cause == WaitCauseText(static_cast<WaitCause>(i)))
        wait.cause = static_cast<WaitCause>(i);
    }
    PENSTOCK_TRY_ASSIGN(const std::string awaited, details.StringOr("awaited", "."));
    PENSTOCK_TRY_ASSIGN(wait.awaited, ParseNamed(awaited, details.where()));
    PENSTOCK_TRY_ASSIGN(const int64_t rank, details.IntOr("rank", -1, -1, kMostRanks - 1));
    wait.awaited_rank = RankId(static_cast<int32_t>(rank));
    RankOf(tid).waits.push_back(wait);
    return {};
  }

  Result<> ReadMessage(const JsonReader& details, int64_t tid, const std::string& name) {
    Message message;
    PENSTOCK_TRY_ASSIGN(message.action, ParseNamed(name, details.where()));
    if (!schedule::IsSend(message.action.kind))
      return Wrong(fmt::format("message '{}' is no SEND", name.substr(0, 40)));
    message.from = RankId(static_cast<int32_t>(tid));
    PENSTOCK_TRY_ASSIGN(const int64_t to, details.Int("to", 0, kMostRanks - 1));
    message.to = RankId(static_cast<int32_t>(to));
    PENSTOCK_TRY_ASSIGN(const int64_t step, details.IntOr("step", 0, 0, INT32_MAX));
    message.step = static_cast<int32_t>(step);
    PENSTOCK_TRY_ASSIGN(const double sent, details.Number("sent", -1e18, 1e18));
    PENSTOCK_TRY_ASSIGN(const double arrived, details.Number("arrived", -1e18, 1e18));
    message.sent_s = sent / kMicro;
    message.arrived_s = arrived / kMicro;
    PENSTOCK_TRY_ASSIGN(message.bytes, details.IntOr("bytes", 0, 0, INT64_MAX));
    RankOf(to).received.push_back(message);
    return {};
  }

  Result<Action> ParseNamed(const std::string& text, const std::string& where) const {
    auto action = schedule::ParseAction(text, edges_);
    if (!action.ok())
      return MakeError(ErrorCode::kInvalidArgument, "{}: {}", where, action.error().message);
    return action;
  }

  RankTimeline& RankOf(int64_t tid) {
    const auto r = static_cast<size_t>(tid);
    if (timeline_.ranks.size() <= r)
      timeline_.ranks.resize(r + 1);
    return timeline_.ranks[r];
  }

  void Finish() {
    bool first = true;
    for (RankTimeline& rank : timeline_.ranks) {
      auto by_start = [](const auto& a, const auto& b) { return a.start_s < b.start_s; };
      std::stable_sort(rank.slices.begin(), rank.slices.end(), by_start);
      std::stable_sort(rank.waits.begin(), rank.waits.end(), by_start);
      rank.totals = TotalsOf(rank);
      for (const Slice& slice : rank.slices) {
        if (!has_window_) {
          timeline_.begin_s = first ? slice.start_s : std::min(timeline_.begin_s, slice.start_s);
          timeline_.end_s = first ? slice.end_s : std::max(timeline_.end_s, slice.end_s);
        }
        first = false;
      }
    }
  }

  std::string source_;
  Timeline timeline_;
  std::vector<Edge> edges_;
  bool has_window_ = false;
};

}  // namespace

Result<Timeline> ReadChromeTrace(std::string_view text, const std::string& source) {
  PENSTOCK_TRY_ASSIGN(const Json root, ParseJson(text, source));
  return ChromeReader(source).Read(root);
}

Result<Timeline> ReadChromeTraceFile(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(const std::string text, ReadFile(path));
  return ReadChromeTrace(text, path);
}

}  // namespace penstock::trace
