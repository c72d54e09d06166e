#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace penstock::text {
namespace {

struct Alphabet {
  std::array<char32_t, 256> letter{};
  std::array<std::string, 256> utf8;
  std::array<int, 0x144> byte{};

  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      letter[b] = printable ? static_cast<char32_t>(b) : next++;
      byte[letter[b]] = b;
      AppendUtf8(utf8[b], letter[b]);
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

char32_t ByteToLetter(uint8_t byte) {
  return TheAlphabet().letter[byte];
}

std::string_view ByteToLetterUtf8(uint8_t byte) {
  return TheAlphabet().utf8[byte];
}

int LetterToByte(char32_t letter) {
  const Alphabet& alphabet = TheAlphabet();
  return letter < alphabet.byte.size() ? alphabet.byte[letter] : -1;
}

void AppendByteLevel(std::string& out, std::string_view bytes) {
  const Alphabet& alphabet = TheAlphabet();
  for (const char c : bytes) {
    out += alphabet.utf8[static_cast<uint8_t>(c)];
  }
}

std::string ByteLevelToBytes(std::string_view letters) {
  std::string bytes;
  bytes.reserve(letters.size());
  if (FindIllFormed(letters, 0) != letters.size()) {
    return std::string(letters);
  }
  for (size_t at = 0; at < letters.size();) {
    const int byte = LetterToByte(NextCodePoint(letters, at));
    if (byte < 0) {
      return std::string(letters);
    }
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

}  // namespace penstock::text
