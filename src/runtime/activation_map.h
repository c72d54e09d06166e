// The kernels' name of an activation of the graph.

#pragma once

#include "kernels/device.h"
#include "model/graph.h"

namespace penstock::runtime {

inline kernels::Activation ConvertActivation(model::Activation activation) {
  switch (activation) {
    case model::Activation::kSilu:
      return kernels::Activation::kSilu;
    case model::Activation::kGeluTanh:
      return kernels::Activation::kGeluTanh;
    case model::Activation::kGelu:
      return kernels::Activation::kGelu;
    case model::Activation::kRelu:
      return kernels::Activation::kRelu;
    case model::Activation::kReluSquared:
      return kernels::Activation::kReluSquared;
    case model::Activation::kSigmoid:
      return kernels::Activation::kSigmoid;
    case model::Activation::kSitu:
      return kernels::Activation::kSitu;
  }
  return kernels::Activation::kSilu;
}

}  // namespace penstock::runtime
