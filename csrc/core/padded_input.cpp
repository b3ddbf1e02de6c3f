// SPDX-License-Identifier: MIT
#include "core/padded_input.h"

#include <algorithm>
#include <string>

#include "core/bytes.h"
#include "core/error.h"

namespace xpugraph {

PaddedInput::PaddedInput(void* data, std::size_t row_bytes, std::int64_t capacity)
    : data_(data), row_bytes_(row_bytes), capacity_(capacity), head_(capacity), tail_(capacity), end_(capacity) {
  if (capacity < 1) throw InputError("a padded input of " + std::to_string(capacity) + " rows");
  if (checked_mul(row_bytes, static_cast<std::size_t>(capacity)) > 0 && data == nullptr) {
    throw InputError("a padded input without memory");
  }
}

Transfer* PaddedInput::append_fill(Transfer* out, std::int64_t size, std::int64_t rows, const void* src) {
  if (rows < 0 || rows > size || size > capacity_) {
    throw InputError("cannot fill " + std::to_string(rows) + " rows of " + std::to_string(size) +
                     " in a padded input of " + std::to_string(capacity_));
  }
  // No overflow below: the constructor checked row_bytes * capacity.
  const auto bytes = [this](std::int64_t count) { return row_bytes_ * static_cast<std::size_t>(count); };
  if (bytes(rows) > 0) {
    // A transfer without a source zeroes, so a missing source must not get that far.
    if (src == nullptr) throw InputError("an input of " + std::to_string(rows) + " rows without memory");
    *out++ = Transfer{data_, src, bytes(rows)};
  }
  // One transfer over everything in rows..size that may not be zero.
  const std::int64_t first = rows < head_ ? rows : std::max(rows, tail_);
  const std::int64_t last = std::min(size, end_ > tail_ && tail_ < size ? end_ : head_);
  if (first < last && row_bytes_ > 0) {
    *out++ = Transfer{static_cast<char*>(data_) + bytes(first), nullptr, bytes(last - first)};
  }
  tail_ = head_ > size ? size : std::max(tail_, size);
  end_ = std::max({end_, head_, tail_});
  head_ = rows;
  return out;
}

void PaddedInput::touch(std::int64_t rows) {
  head_ = std::max(head_, std::min(rows, capacity_));
  tail_ = std::max(tail_, head_);
  end_ = std::max(end_, tail_);
}

}  // namespace xpugraph
