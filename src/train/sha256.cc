#include "train/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/progress.h"

namespace penstock::train {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  PENSTOCK_CHECK(context_ != nullptr && EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_),
                                                          EVP_sha256(), nullptr) == 1,
                 "libcrypto has SHA-256");
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_));
}

void Sha256::Update(std::span<const std::byte> bytes) {
  constexpr size_t kPiece = size_t{16} << 20;
  do {
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    PENSTOCK_CHECK(
        EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), piece.data(), piece.size()) == 1,
        "a digest takes bytes until its end");
    bytes = bytes.subspan(piece.size());
    Progress();
  } while (!bytes.empty());
}

void Sha256::Update(std::string_view text) {
  Update(std::as_bytes(std::span(text.data(), text.size())));
}

std::string Sha256::Hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  PENSTOCK_CHECK(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest.data(), &size) == 1,
                 "a digest ends once");
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += fmt::format("{:02x}", digest[i]);
  }
  return hex;
}

std::string Sha256Hex(std::span<const std::byte> bytes) {
  Sha256 digest;
  digest.Update(bytes);
  return digest.Hex();
}

std::string Sha256Hex(std::string_view text) {
  return Sha256Hex(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace penstock::train
