// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
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

TEST_F(PaddedInputTest, ZeroesOnlyWhatIsNotZero) {
  fill(16, 16);
  EXPECT_EQ(fill(8, 5).size(), 2u);
  EXPECT_EQ(fill(8, 5).size(), 1u) << "rows 5..8 are zero since the call before";
  EXPECT_EQ(fill(8, 7).size(), 1u);
  const auto fewer = fill(8, 3);
  ASSERT_EQ(fewer.size(), 2u);
  EXPECT_EQ(fewer[1].dst, buffer.data() + 3 * kRow);
  EXPECT_EQ(fewer[1].bytes, 4 * kRow) << "rows 3..7";
  const auto larger = fill(12, 4);
  ASSERT_EQ(larger.size(), 2u) << "rows 8..12 are those of the first call";
  EXPECT_EQ(larger[1].dst, buffer.data() + 8 * kRow);
  EXPECT_EQ(larger[1].bytes, 4 * kRow);
  input.touch(6);
  const auto touched = fill(8, 2);
  ASSERT_EQ(touched.size(), 2u);
  EXPECT_EQ(touched[1].bytes, 4 * kRow) << "rows 2..6";
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
  PaddedInput empty_rows(nullptr, 0, kCapacity);
  Transfer out[PaddedInput::kMaxTransfers];
  EXPECT_EQ(empty_rows.append_fill(out, 8, 5, nullptr), out);
}

// Whatever came before: rows 0..rows are the source's, rows..size are zero, and what is touched is not forgotten.
TEST_F(PaddedInputTest, AnySequenceOfCallsLeavesNoStaleRow) {
  testing::FakeRuntime runtime;
  std::mt19937 random(3);
  for (int call = 0; call < 5000; ++call) {
    const auto size = static_cast<std::int64_t>(random() % (kCapacity + 1));
    const auto rows = static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(size + 1));
    if (random() % 16 == 0) {
      const auto touched = static_cast<std::int64_t>(random() % (kCapacity + 1));
      std::fill_n(buffer.begin(), kRow * touched, 'x');
      input.touch(touched);
    }
    std::fill(source.begin(), source.end(), static_cast<char>('a' + call % 26));
    const auto transfers = fill(size, rows);
    runtime.transfer(testing::FakeRuntime::stream(1), transfers.data(), transfers.size());
    std::vector<char> expected(source.begin(), source.begin() + kRow * rows);
    expected.resize(kRow * size, '\0');
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), buffer.begin())) << rows << " rows of " << size;
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
