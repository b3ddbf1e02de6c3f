// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/padded_input.h"
#include "expect_error.h"
#include "fake_runtime.h"

namespace xpugraph {
namespace {

constexpr std::size_t kRow = 12;
constexpr std::int64_t kCapacity = 16;

struct PaddedInputTest : ::testing::Test {
  std::vector<char> buffer = std::vector<char>(kRow * kCapacity, 'x');
  std::vector<char> source = std::vector<char>(kRow * kCapacity, 's');
  PaddedInput input{buffer.data(), kRow, kCapacity};

  std::vector<Transfer> fill(std::int64_t size, std::int64_t rows) {
    Transfer out[PaddedInput::kMaxTransfers];
    Transfer* end = input.append_fill(out, size, rows, source.data());
    return {out, end};
  }
};

TEST_F(PaddedInputTest, CopiesTheRowsAndZeroesUpToTheSize) {
  const auto transfers = fill(8, 5);
  ASSERT_EQ(transfers.size(), 2u);
  EXPECT_EQ(transfers[0].dst, buffer.data());
  EXPECT_EQ(transfers[0].src, source.data());
  EXPECT_EQ(transfers[0].bytes, 5 * kRow);
  EXPECT_EQ(transfers[1].dst, buffer.data() + 5 * kRow);
  EXPECT_EQ(transfers[1].src, nullptr);
  EXPECT_EQ(transfers[1].bytes, 3 * kRow);
}

TEST_F(PaddedInputTest, AFullBatchNeedsNoZeroes) {
  const auto transfers = fill(8, 8);
  ASSERT_EQ(transfers.size(), 1u);
  EXPECT_EQ(transfers[0].bytes, 8 * kRow);
}

TEST_F(PaddedInputTest, NoRowsNeedNoSource) {
  Transfer out[PaddedInput::kMaxTransfers];
  Transfer* end = input.append_fill(out, 4, 0, nullptr);
  ASSERT_EQ(end, out + 1);
  EXPECT_EQ(out[0].src, nullptr);
  EXPECT_EQ(out[0].bytes, 4 * kRow);
  EXPECT_EQ(input.append_fill(out, 0, 0, nullptr), out);
}

TEST_F(PaddedInputTest, RowsWithoutBytesAreNoTransfer) {
  const PaddedInput empty_rows(nullptr, 0, kCapacity);
  Transfer out[PaddedInput::kMaxTransfers];
  EXPECT_EQ(empty_rows.append_fill(out, 8, 5, nullptr), out);
}

// For every size and every number of rows: bytes 0..rows are the source's, rows..size are zero, the rest is untouched.
TEST_F(PaddedInputTest, FillsExactlyTheSize) {
  testing::FakeRuntime runtime;
  for (std::int64_t size = 0; size <= kCapacity; ++size) {
    for (std::int64_t rows = 0; rows <= size; ++rows) {
      std::fill(buffer.begin(), buffer.end(), 'x');
      const auto transfers = fill(size, rows);
      runtime.transfer(testing::FakeRuntime::stream(1), transfers.data(), transfers.size());
      std::vector<char> expected(kRow * rows, 's');
      expected.resize(kRow * size, '\0');
      expected.resize(kRow * kCapacity, 'x');
      ASSERT_EQ(buffer, expected) << rows << " rows of " << size;
    }
  }
}

TEST_F(PaddedInputTest, RefusesWhatDoesNotFit) {
  expect_error<InputError>([&] { fill(8, 9); }, "9 rows of 8");
  expect_error<InputError>([&] { fill(8, -1); }, "-1 rows of 8");
  expect_error<InputError>([&] { fill(kCapacity + 1, 2); }, "padded input of 16");
  Transfer out[PaddedInput::kMaxTransfers];
  // A transfer without a source would zero the rows.
  expect_error<InputError>([&] { input.append_fill(out, 8, 5, nullptr); }, "5 rows without memory");
}

TEST_F(PaddedInputTest, RefusesBuffersThatCannotBe) {
  expect_error<InputError>([&] { PaddedInput(buffer.data(), kRow, 0); }, "0 rows");
  expect_error<InputError>([&] { PaddedInput(nullptr, kRow, 1); }, "without memory");
  expect_error<OutOfMemoryError>([&] { PaddedInput(buffer.data(), std::numeric_limits<std::size_t>::max(), 2); },
                                 "* 2");
}

}  // namespace
}  // namespace xpugraph
