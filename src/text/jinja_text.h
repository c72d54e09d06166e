// A chat template's text in a form that does not depend on white space, for telling whether two
// templates are the same.
//
// Two templates with equal canonical forms print the same for every conversation: only what Jinja
// does not print was dropped. That is (Jinja, template designer documentation; transformers renders
// with trim_blocks and lstrip_blocks): comments; white space inside tags outside of string
// literals; the line end behind a block tag; spaces before a block tag at the start of a line; what
// "-" marks strip; one line end at the end. String literals are compared by value ('\n' or a real
// line end).

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::text {

// Empty where a tag does not end. O(length).
std::optional<std::string> CanonicalTemplate(std::string_view jinja);

// 64-bit FNV-1a hash of the canonical form; empty as above.
std::optional<uint64_t> TemplateFingerprint(std::string_view jinja);

}  // namespace penstock::text
