// Result<T>: a value or an Error. Dropping one is a compile error; there are no monads and nothing
// is thrown.

#pragma once

#include <fmt/format.h>

#include <tl/expected.hpp>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace penstock {

template <class T = void>
class [[nodiscard]] Result {
 public:
  // Values and errors convert, so that `return value;` works; the constraint keeps copies out.
  // NOLINTBEGIN(google-explicit-constructor,bugprone-forwarding-reference-overload)
  template <class U = T>

  requires(!std::is_void_v<U> && std::is_constructible_v<T, U&&> &&
           !std::is_same_v<std::remove_cvref_t<U>, Result> &&
           !std::is_same_v<std::remove_cvref_t<U>, Error>) Result(U&& value)
      : state_(std::forward<U>(value)) {}

  Result(Error error) : state_(tl::unexpected<Error>(std::move(error))) {}

  // NOLINTEND(google-explicit-constructor,bugprone-forwarding-reference-overload)

  Result() requires(std::is_void_v<T>) = default;

  bool ok() const { return state_.has_value(); }

  explicit operator bool() const { return ok(); }

  // REQUIRES: ok().
  decltype(auto) value() & {
    CheckOk();
    return *state_;
  }

  decltype(auto) value() const& {
    CheckOk();
    return *state_;
  }

  decltype(auto) value() && {
    CheckOk();
    return *std::move(state_);
  }

  auto* operator->() {
    CheckOk();
    return &*state_;
  }

  const auto* operator->() const {
    CheckOk();
    return &*state_;
  }

  // REQUIRES: !ok().
  const Error& error() const& {
    PENSTOCK_CHECK(!ok(), "error() of a good Result");
    return state_.error();
  }

  Error error() && {
    PENSTOCK_CHECK(!ok(), "error() of a good Result");
    return std::move(state_).error();
  }

 private:
  void CheckOk() const { PENSTOCK_CHECK(ok(), state_.error().message.c_str()); }

  tl::expected<T, Error> state_;
};

// MakeError(ErrorCode::kCorruptData, "[weights.gguf] {}: version {}, wanted 2 or 3", path, v)
template <class... Args>
Error MakeError(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace penstock

#define PENSTOCK_CONCAT_INNER(a, b) a##b
#define PENSTOCK_CONCAT(a, b) PENSTOCK_CONCAT_INNER(a, b)

// Returns the error of `expr` from the enclosing function, if it has one.
#define PENSTOCK_TRY(expr)                                              \
  do {                                                                  \
    if (auto penstock_try_result = (expr); !penstock_try_result.ok()) { \
      return std::move(penstock_try_result).error();                    \
    }                                                                   \
  } while (false)

// PENSTOCK_TRY_ASSIGN(auto file, MappedFile::Open(path));
#define PENSTOCK_TRY_ASSIGN(lhs, expr) \
  PENSTOCK_TRY_ASSIGN_INNER(PENSTOCK_CONCAT(penstock_result_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): a name and a declaration can't stand in parentheses.
#define PENSTOCK_TRY_ASSIGN_INNER(name, lhs, expr) \
  auto name = (expr);                              \
  if (!name.ok()) {                                \
    return std::move(name).error();                \
  }                                                \
  lhs = std::move(name).value()
// NOLINTEND(bugprone-macro-parentheses)
