// Which values and tensors tie the stages of a cut together, in training.

#pragma once

#include <vector>

#include "model/cut.h"
#include "model/graph.h"

namespace penstock::runtime {

// The activations that stage `stage` hands to the next one with the chain's message: those that it
// makes and that the next stage alone reads. Others go to their readers by edges.
std::vector<ValueId> ChainValues(const model::Graph& graph, const model::Partition& partition,
                                 StageId stage);

// The activations that cross the boundary in front of `stage`, ascending: what travels back from
// it.
std::vector<ValueId> GradientsInFront(const model::Graph& graph, const model::CutSets& cuts,
                                      const model::Partition& partition, StageId stage);

// The activation of an edge of TrainEdges, by its name; invalid when there is none.
ValueId EdgeValue(const model::Graph& graph, const std::string& edge_name);
TensorId EdgeTensor(const model::Graph& graph, const std::string& edge_name);

// Per tensor, whether training changes it (a router's correction bias is not trained).
std::vector<bool> TrainableTensors(const model::Graph& graph);

// Per tensor, the stages that use it, ascending, each once.
std::vector<std::vector<StageId>> TensorStages(const model::Graph& graph,
                                               const model::Partition& partition);

}  // namespace penstock::runtime
