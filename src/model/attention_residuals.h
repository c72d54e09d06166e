// Attention residuals (arXiv 2603.15031): a sublayer's input is a softmax over the depth of the
// model.
//
// The sublayers are dealt to blocks in order. The sources of a read are the embedding, the sum of
// each finished block's sublayer outputs, and the running sum of the current block if it has begun.
// A sublayer's output enters only its block's sum. Full attention residuals are blocks of one
// sublayer. Kimi K3 is the same with blocks of a number of decoder layers (two sublayers each), a
// key norm and a read at the end.
//
// Nothing crosses tokens: sources are values of one step and no state of a sequence.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/decoder.h"
#include "model/graph.h"
#include "model/residual.h"

namespace penstock::model {

// One read: query `tensor` + "_proj.weight" [1, width], and with `key_norm` the weight of the norm
// on the scores' side, `tensor` + "_norm.weight" [width].
struct DepthReadPiece {
  float epsilon = 1e-6F;
  bool key_norm = false;
};

ValueId DepthRead(GraphBuilder& b, const std::vector<ValueId>& sources, const DepthReadPiece& piece,
                  const std::string& tensor, std::string name);

// Embedding, finished blocks, running sum.
class BlockSums {
 public:
  explicit BlockSums(ValueId embedding) : bank_{embedding} {}

  // Adds a sublayer's output to the current block. With `ends` the block is finished by it. The sum
  // is named "block.K" (K from 1) when it ends the block, else "partial." + tag; the first output
  // of a block is its sum as it is.
  void Add(GraphBuilder& b, ValueId y, bool ends, const std::string& tag);

  // In the order of the reads: the embedding, the blocks, the running sum.
  std::vector<ValueId> Sources() const;

 private:
  std::vector<ValueId> bank_;
  ValueId partial_;  // invalid: the block has not begun
};

struct AttentionResiduals {
  std::vector<bool> ends;  // per sublayer (two per decoder layer): ends its block
  DepthReadPiece read;
  bool attend = true;  // the head reads with a query of its own; else it takes the sources' sum
};

// Blocks of `size` sublayers, the last one shorter where they do not come out even.
std::vector<bool> EvenBlocks(int64_t sublayers, int64_t size);

// The object `attention_residuals` of a config.json; nothing when it is absent. Errors name the
// key: an unknown one, one that is missing, one that contradicts another, a size that is not legal.
Result<std::optional<AttentionResiduals>> ReadAttentionResiduals(const JsonReader& config,
                                                                 const DecoderConfig& decoder);

// Reads with model.layers.N.self_attention_res, model.layers.N.mlp_res and, at the head,
// model.output_attn_res.
class AttentionResidual final : public Residual {
 public:
  // REQUIRES: one entry in `residuals.ends` per sublayer that will be written.
  AttentionResidual(ValueId embedding, AttentionResiduals residuals)
      : residuals_(std::move(residuals)), sums_(embedding) {}

  ValueId Read(GraphBuilder& b, const Sublayer& place) override;
  void Write(GraphBuilder& b, const Sublayer& place, ValueId y) override;
  ValueId Output(GraphBuilder& b, const std::string& tag) override;

 private:
  AttentionResiduals residuals_;
  BlockSums sums_;
};

}  // namespace penstock::model
