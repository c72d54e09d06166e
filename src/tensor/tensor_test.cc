#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/memory.h"

namespace penstock {
namespace {

TEST(MemoryAccount, KeepsPeaksPerCategoryAndOfTheSum) {
  MemoryAccount account(1000);
  {
    const Buffer weights = Buffer::Allocate(account, MemoryCategory::kWeights, 600).value();
    { const Buffer scratch = Buffer::Allocate(account, MemoryCategory::kWorkspace, 300).value(); }
    const Buffer kv = Buffer::Allocate(account, MemoryCategory::kKv, 200).value();
    EXPECT_EQ(account.current().total, 800);
  }
  EXPECT_EQ(account.current().total, 0);
  EXPECT_EQ(account.peak().total, 900);
  EXPECT_EQ(account.peak()[MemoryCategory::kKv], 200);
}

TEST(MemoryAccount, RefusesBeyondItsLimitWithBothNumbers) {
  MemoryAccount account(1000);
  const auto buffer = Buffer::Allocate(account, MemoryCategory::kKv, 1001);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(buffer.error().message.find("1001"), std::string::npos);
  EXPECT_EQ(account.peak().total, 0);
}

TEST(Buffer, ManyOfWeightsAndKeysAreApartAndAligned) {
  MemoryAccount account;
  std::vector<Buffer> buffers;
  for (const int64_t bytes : {20000, 100, 70000000, 20001, 500000, 64}) {
    for (const MemoryCategory category : {MemoryCategory::kWeights, MemoryCategory::kKv}) {
      auto buffer = Buffer::Allocate(account, category, bytes);
      ASSERT_TRUE(buffer.ok());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.value().data()) % 64, 0U);
      buffers.push_back(std::move(buffer).value());
    }
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    std::fill(buffers[i].data(), buffers[i].data() + buffers[i].size(), static_cast<std::byte>(i));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    const std::byte* end = buffers[i].data() + buffers[i].size();
    EXPECT_EQ(
        std::count(static_cast<const Buffer&>(buffers[i]).data(), end, static_cast<std::byte>(i)),
        buffers[i].size());
  }
  buffers.erase(buffers.begin() + 3, buffers.end());
  Buffer moved = std::move(buffers[2]);
  buffers.clear();
  EXPECT_EQ(account.current().total, moved.size());
  moved = Buffer();
  EXPECT_EQ(account.current().total, 0);
}

TEST(Tensor, SlicesColumnsAndRowsWithoutCopying) {
  MemoryAccount account;
  Buffer buffer = Buffer::Allocate(account, MemoryCategory::kActivations, 4 * 6 * 4).value();
  const Tensor all = Tensor::Of(buffer, DType::kF32, 4, 6);
  for (int i = 0; i < 24; ++i) {
    all.All<float>()[i] = static_cast<float>(i);
  }
  const Tensor part = all.Columns(2, 3).Rows(1, 2);
  EXPECT_EQ(part.Row<float>(1)[2], 16.0f);
  EXPECT_FALSE(part.contiguous());
  EXPECT_EQ(RowBytes(DType::kQ4_1, 64), 40);
}

}  // namespace
}  // namespace penstock
