// Standard input as one text.

#pragma once

#include <string>

#include "base/result.h"

namespace penstock::cli {

// All of it, not trimmed. Errors: kNotFound (closed, or it cannot be read).
Result<std::string> ReadStandardInput();

}  // namespace penstock::cli
