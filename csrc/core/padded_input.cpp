// SPDX-License-Identifier: MIT
#include "core/padded_input.h"

#include <string>

#include "core/bytes.h"
#include "core/error.h"

namespace xpugraph {

PaddedInput::PaddedInput(void* data, std::size_t row_bytes, std::int64_t capacity)
    : data_(data), row_bytes_(row_bytes), capacity_(capacity) {
  if (capacity < 1) throw InputError("a padded input of " + std::to_string(capacity) + " rows");
  if (checked_mul(row_bytes, static_cast<std::size_t>(capacity)) > 0 && data == nullptr) {
    throw InputError("a padded input without memory");
  }
}

Transfer* PaddedInput::append_fill(Transfer* out, std::int64_t size, std::int64_t rows, const void* src) const {
  if (rows < 0 || rows > size || size > capacity_) {
    throw InputError("cannot fill " + std::to_string(rows) + " rows of " + std::to_string(size) +
                     " in a padded input of " + std::to_string(capacity_));
  }
  // No overflow below: the constructor checked row_bytes * capacity.
  const std::size_t copied = row_bytes_ * static_cast<std::size_t>(rows);
  const std::size_t zeroed = row_bytes_ * static_cast<std::size_t>(size - rows);
  if (copied > 0) {
    // A transfer without a source zeroes, so a missing source must not get that far.
    if (src == nullptr) throw InputError("an input of " + std::to_string(rows) + " rows without memory");
    *out++ = Transfer{data_, src, copied};
  }
  if (zeroed > 0) *out++ = Transfer{static_cast<char*>(data_) + copied, nullptr, zeroed};
  return out;
}

}  // namespace xpugraph
