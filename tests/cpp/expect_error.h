// SPDX-License-Identifier: MIT
/// @file expect_error: checks that a call throws exactly one class of error, with a given piece of text in its message.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <typeinfo>

namespace xpugraph {

template <typename Expected, typename Call>
void expect_error(Call&& call, const std::string& part) {
  try {
    call();
  } catch (const std::exception& error) {
    EXPECT_TRUE(typeid(error) == typeid(Expected)) << "got a " << typeid(error).name() << ": " << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    return;
  }
  ADD_FAILURE() << "no error; expected one that says: " << part;
}

}  // namespace xpugraph
