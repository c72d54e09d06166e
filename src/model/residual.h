// What runs through the depth of a decoder: how a sublayer gets its input and where its output
// goes. The plain one is x + f(x); variations read earlier values, keep several streams, or skip.
//
// A residual is used in execution order: for each sublayer Read, then Write; Output in between or
// at the end, as often as wanted. It knows nothing of what a sublayer computes.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/graph.h"

namespace penstock::model {

// kExtra: what a variation adds behind the two that every layer has.
enum class SublayerKind : uint8_t { kAttention, kMlp, kExtra };

// One sublayer by its place in the depth of the model.
struct Sublayer {
  int64_t layer = 0;  // decoder layer, from 0
  SublayerKind kind = SublayerKind::kAttention;
};

class Residual {
 public:
  virtual ~Residual() = default;

  // The value that the sublayer works on, before its norm.
  virtual ValueId Read(GraphBuilder& b, const Sublayer& place) = 0;
  // Takes the sublayer's output.
  virtual void Write(GraphBuilder& b, const Sublayer& place, ValueId y) = 0;
  // The value that a head reads, before its norm; `tag` ends the names of values that are made.
  virtual ValueId Output(GraphBuilder& b, const std::string& tag) = 0;
};

// x + f(x). Values are named "middle.N" after attention, "hidden.N" after the feed-forward part and
// "extended.N" after an extra sublayer.
class PlainResidual final : public Residual {
 public:
  explicit PlainResidual(ValueId embedding) : x_(embedding) {}

  ValueId Read(GraphBuilder&, const Sublayer&) override { return x_; }

  void Write(GraphBuilder& b, const Sublayer& place, ValueId y) override;

  ValueId Output(GraphBuilder&, const std::string&) override { return x_; }

 private:
  ValueId x_;
};

// "attention", "mlp", "extra".
std::string_view SublayerName(SublayerKind kind);

// "attention.3".
std::string SublayerTag(const Sublayer& place);

}  // namespace penstock::model
