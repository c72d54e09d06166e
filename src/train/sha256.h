// SHA-256 (FIPS 180-4), by OpenSSL's libcrypto, which uses the processor's instructions for it.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace penstock::train {

// Feeds bytes piece by piece, calling Progress(). Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text);

  // 64 hexadecimal digits in lower case. Ends the digest: nothing may be fed after it.
  std::string Hex();

 private:
  void* context_;  // EVP_MD_CTX
};

// Of one piece. About 1 GB/s.
std::string Sha256Hex(std::span<const std::byte> bytes);
std::string Sha256Hex(std::string_view text);

}  // namespace penstock::train
