// penstock export: a checkpoint as a folder in Hugging Face layout.

#include <fmt/core.h>

#include "base/json.h"
#include "base/units.h"
#include "cli/verbs.h"
#include "train/export.h"

namespace penstock::cli {
namespace {

struct ExportFlags {
  CommonFlags common;
  std::string checkpoint;
  std::string folder;
  std::string type = "f32";
};

int Run(const Verb& verb, const ExportFlags& flags) {
  if (flags.type != "f32" && flags.type != "bf16") {
    return Fail(verb,
                MakeError(ErrorCode::kInvalidArgument,
                          "[cli.export] --weights: got '{}', wanted f32 or bf16", flags.type));
  }
  const auto outcome =
      train::ExportCheckpoint(flags.checkpoint, flags.folder, flags.type == "bf16");
  if (!outcome.ok()) {
    return Fail(verb, outcome.error());
  }
  if (flags.common.json) {
    PrintJson({{"checkpoint", outcome->checkpoint},
               {"step", outcome->step},
               {"folder", flags.folder},
               {"tensors", outcome->tensors},
               {"weights_bytes", outcome->bytes}});
    return 0;
  }
  fmt::print("{} (step {}): {}, {}, in {}\n", outcome->checkpoint, outcome->step,
             Counted(outcome->tensors, "tensor"), FormatBytes(static_cast<double>(outcome->bytes)),
             flags.folder);
  return 0;
}

}  // namespace

void AddExport(Verb& app, int& status) {
  auto flags = std::make_shared<ExportFlags>();
  Verb* verb = app.AddVerb("export",
                           "Write a checkpoint as a model folder that transformers and `run` load");
  AddCommonFlags(*verb, flags->common);
  verb->AddOption("checkpoint", flags->checkpoint,
                  "A step's folder, or the folder of a run (its newest whole checkpoint)")
      ->Required()
      ->TypeName("CHECKPOINT");
  verb->AddOption("-o,--output", flags->folder, "Folder to write")->Required()->TypeName("FOLDER");
  verb->AddOption("--weights", flags->type, "Of the files: f32 or bf16")
      ->TypeName("TYPE")
      ->ShowDefault();
  verb->Examples({"penstock export runs/tiny -o tiny-model"});
  verb->Callback([verb, flags, &status] { status = Run(*verb, *flags); });
}

}  // namespace penstock::cli
