// Generating several sequences with an engine: text, ends, times. Shared by run, chat and bench.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "serve/engine.h"
#include "text/detokenizer.h"
#include "text/stop.h"

namespace penstock::cli {

struct Prompt {
  std::vector<int32_t> tokens;
  int64_t max_new = 0;  // 0: that of the options
};

struct GenerateOptions {
  int64_t max_new = 256;
  serve::SamplingParams sampling;
  std::set<int32_t> end_ids;
  bool ignore_eos = false;
  std::vector<std::string> stops;
};

struct Output {
  int64_t prompt_tokens = 0;
  std::vector<int32_t> tokens;  // without the end token that stopped it
  std::string text;
  std::string finish_reason;  // "stop", "length", "interrupted"
  std::vector<serve::Sampled> logprobs;
};

// What rank 0 saw, in seconds from the first plan. Rates count prompt tokens until the last prompt
// had its first token, and generated tokens after.
struct Rates {
  int64_t prefill_tokens = 0;
  double prefill_s = 0;
  int64_t decode_tokens = 0;
  double decode_s = 0;
  double ttft_s = 0;
  std::optional<double>
      tpot_s;  // mean time per token after the first; none when no sequence had a second
};

// Called with text that may be shown at once (whole characters).
using OnText = std::function<void(size_t sequence, const std::string& piece)>;

// Writes each piece at once; a reader that went away counts as Ctrl-C.
OnText StreamToStdout();

// One batch of sequences, from their first plan to their last token. `tokenizer` may be null (no
// text then).
class Generation {
 public:
  Generation(serve::Engine& engine, const text::Tokenizer* tokenizer,
             const GenerateOptions& options, OnText on_text);

  // Errors: those of Engine::Admit, text::StopFilter::Make.
  Result<> Add(const Prompt& prompt, int64_t room = 0);
  // Goes on with a finished sequence of the engine (a conversation).
  Result<> AddContinued(int32_t sequence, std::span<const int32_t> tokens);

  // Until every sequence ended, or Ctrl-C.
  Result<> Run();

  int32_t engine_sequence(size_t index) const { return entries_[index].sequence; }

  std::vector<Output> TakeOutputs();
  Rates rates() const;

 private:
  struct Entry {
    int32_t sequence = 0;
    int64_t max_new = 0;
    Output output;
    std::optional<text::Detokenizer> detokenizer;
    std::optional<text::StopFilter> filter;
    double first_s = -1;
    double last_s = -1;
  };

  Result<Entry> NewEntry(int64_t prompt_tokens, int64_t max_new);
  bool OnRow(const serve::RowResult& row);
  void Show(Entry& entry, const std::string& text);
  void Close(Entry& entry, const char* reason);
  double Now() const;

  serve::Engine& engine_;
  const text::Tokenizer* tokenizer_;
  GenerateOptions options_;
  OnText on_text_;
  std::vector<Entry> entries_;
  comm::Clock::time_point start_{};
  double end_s_ = 0;
  std::vector<double> arrivals_s_;
};

}  // namespace penstock::cli
