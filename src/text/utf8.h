// UTF-8, and the few Unicode classes that tokenizers ask for.
//
// "Well-formed" is Unicode's table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF.
// Everything here is pure and thread-safe.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::text {

// Length (1 to 4) of the well-formed sequence at the start of `text`; 0 where there is none.
size_t WellFormedLength(std::string_view text);

// Length of the maximal subpart of an ill-formed sequence at the start of `text` (Unicode 15,
// section 3.9): the bytes that one replacement character stands for. `incomplete` (may be null)
// tells whether more bytes could still complete it. REQUIRES: text is not empty and
// WellFormedLength(text) == 0.
size_t IllFormedLength(std::string_view text, bool* incomplete);

// Offset of the first byte at or after `from` that no well-formed sequence holds, or text.size().
size_t FindIllFormed(std::string_view text, size_t from);

// `text` with one U+FFFD per maximal ill-formed subpart, as the WHATWG decoder and Rust's
// from_utf8_lossy do.
std::string ReplaceIllFormed(std::string_view text);

// The code point at `position`, which moves behind it. REQUIRES: a well-formed sequence is there.
char32_t NextCodePoint(std::string_view text, size_t& position);

// Length of the sequence that this first byte begins. REQUIRES: well-formed text.
size_t SequenceLength(char first);

void AppendUtf8(std::string& out, char32_t code_point);

// Unicode property White_Space.
bool IsWhiteSpace(char32_t c);
// General categories Nd, Nl, No.
bool IsNumeric(char32_t c);
// General categories P*, and the ASCII symbols that C's ispunct knows.
bool IsPunctuation(char32_t c);
// \w of UTS #18: Alphabetic, marks, decimal numbers, connector punctuation, join controls.
bool IsWord(char32_t c);
// General categories M*.
bool IsMark(char32_t c);

// Bytes of white space at the end and at the start of well-formed text.
size_t TrailingWhiteSpace(std::string_view text);
size_t LeadingWhiteSpace(std::string_view text);

}  // namespace penstock::text
