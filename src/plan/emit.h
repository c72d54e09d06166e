// A plan as something to launch: flags of Megatron-LM or vLLM, or a configuration of this engine.

#pragma once

#include <string>

#include "plan/context.h"

namespace penstock::plan {

// The cut as Megatron's pipeline layout: "Et*63|t*63L". Empty stages are empty.
std::string MegatronLayout(const Layout& layout);

// `target` is megatron (training), vllm (inference) or penstock. Errors: kInvalidArgument (unknown
// target), kUnsupported (a plan that the target cannot run, with the reason: where
// stages hand on more than one vector, with the list of its values).
Result<std::string> Emit(const Context& context, const Plan& plan, const std::string& target);

}  // namespace penstock::plan
