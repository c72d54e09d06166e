// The byte alphabet of byte-level BPE: each byte has a printable character that stands for it in a
// vocabulary.
//
// Source: the encoder of GPT-2 (Radford et al. 2019). Printable Latin-1 bytes stand for themselves;
// the other 68 become U+0100, U+0101, ... in ascending order. All functions are pure and
// thread-safe.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::text {

// U+0021..U+0143, always one or two bytes of UTF-8.
char32_t ByteToLetter(uint8_t byte);
std::string_view ByteToLetterUtf8(uint8_t byte);
// The byte that a character stands for, or -1.
int LetterToByte(char32_t letter);

void AppendByteLevel(std::string& out, std::string_view bytes);

// The bytes that `letters` stand for; where a character stands for none, the text itself.
std::string ByteLevelToBytes(std::string_view letters);

}  // namespace penstock::text
