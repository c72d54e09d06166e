// penstock tokenize: text to ids and back.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>

#include "base/json.h"
#include "base/log.h"
#include "cli/model_flags.h"
#include "cli/standard_input.h"
#include "cli/text_model.h"
#include "cli/verbs.h"

namespace penstock::cli {
namespace {

struct TokenizeFlags {
  CommonFlags common;
  std::string model;
  std::string text;
  bool has_text = false;
  bool decode = false;
  bool no_bos = false;
  bool literal = false;
};

void WriteText(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

Result<> Decode(const TokenizeFlags& flags, const text::Tokenizer& tokenizer,
                const std::string& input) {
  PENSTOCK_TRY_ASSIGN(const std::vector<int32_t> ids, ParseIds(input, "tokenize --decode"));
  if (flags.common.json) {
    PENSTOCK_TRY_ASSIGN(const std::string text, tokenizer.Decode(ids, false));
    PrintJson({{"text", text}});
    return {};
  }
  PENSTOCK_TRY_ASSIGN(const std::string bytes, tokenizer.DecodeBytes(ids, false));
  WriteText(bytes + "\n");
  return {};
}

Result<> Encode(const TokenizeFlags& flags, const text::Tokenizer& tokenizer,
                const std::string& input) {
  text::EncodeOptions options;
  options.add_special = !flags.no_bos;
  options.parse_special = !flags.literal;
  text::EncodeReport report;
  PENSTOCK_TRY_ASSIGN(const std::vector<int32_t> ids, tokenizer.Encode(input, options, &report));
  if (report.lost > 0) {
    LogWarning("{} characters have no token in this vocabulary and were left out", report.lost);
  }
  if (flags.common.json) {
    PrintJson({{"ids", ids}});
  } else {
    WriteText(fmt::format("{}\n", fmt::join(ids, ",")));
  }
  return {};
}

Result<> Tokenize(const TokenizeFlags& flags) {
  PENSTOCK_TRY_ASSIGN(const weights::TokenizerMaterial material,
                      weights::OpenTokenizer(flags.model));
  PENSTOCK_TRY_ASSIGN(const LoadedTokenizer loaded, LoadTokenizer(material));
  std::string input = flags.text;
  if (!flags.has_text) {
    PENSTOCK_TRY_ASSIGN(input, ReadStandardInput());
  }
  return flags.decode ? Decode(flags, loaded.tokenizer, input)
                      : Encode(flags, loaded.tokenizer, input);
}

}  // namespace

void AddTokenize(Verb& app, int& status) {
  auto flags = std::make_shared<TokenizeFlags>();
  Verb* verb = app.AddVerb("tokenize", "Token ids of a text, or the text of ids");
  AddCommonFlags(*verb, flags->common);
  verb->AddOption("-m,--model", flags->model,
                  "A .gguf file (a vocabulary is enough) or a folder with tokenizer.json")
      ->Required()
      ->TypeName("MODEL");
  verb->AddFlag("--decode", flags->decode, "The input is ids, separated by commas or white space");
  verb->AddFlag("--no-bos", flags->no_bos, "Add no BOS or EOS");
  verb->AddFlag("--literal", flags->literal, "Take the text of special tokens as plain text");
  Flag* text =
      verb->AddOption("text", flags->text, "The text or ids (default: standard input, not trimmed)")
          ->TypeName("TEXT");
  verb->Examples({"penstock tokenize -m model.gguf \"Hello, world\"",
                  "penstock tokenize -m model.gguf < book.txt > ids.txt",
                  "penstock tokenize -m model.gguf --decode 1,2,3"});
  verb->Callback([verb, flags, text, &status] {
    flags->has_text = text->Count() > 0;
    const Result<> result = Tokenize(*flags);
    status = result.ok() ? 0 : Fail(*verb, result.error());
  });
}

}  // namespace penstock::cli
