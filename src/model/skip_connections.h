// Skips between any two layers (as in U-Nets): layer i works on its input plus the output of an
// earlier layer j. The plain residual otherwise.

#pragma once

#include <cstdint>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/decoder.h"
#include "model/graph.h"
#include "model/residual.h"

namespace penstock::model {

// Adds the output of decoder layer `from` to the input of decoder layer `to`.
struct Skip {
  int64_t from = 0;
  int64_t to = 0;
};

// `skip_connections`: a list of pairs [from, to], from < to. Empty when absent. Ascending by `to`,
// then by `from`: the order in which they are added. Errors: kInvalidArgument naming the pair.
Result<std::vector<Skip>> ReadSkips(const JsonReader& config, const DecoderConfig& decoder);

class SkipResidual final : public Residual {
 public:
  SkipResidual(ValueId embedding, std::vector<Skip> skips)
      : plain_(embedding), skips_(std::move(skips)) {}

  ValueId Read(GraphBuilder& b, const Sublayer& place) override;
  void Write(GraphBuilder& b, const Sublayer& place, ValueId y) override;

  ValueId Output(GraphBuilder& b, const std::string& tag) override { return plain_.Output(b, tag); }

 private:
  PlainResidual plain_;
  std::vector<Skip> skips_;
  std::vector<ValueId> outputs_;  // of each decoder layer so far
};

}  // namespace penstock::model
