// SPDX-License-Identifier: MIT
/// @file Errors of the core. Each leaf has a Python class of the same name.
/// Owns nothing; any thread may throw.
#pragma once

#include <stdexcept>

namespace xpugraph {

/// Base of everything the core throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A configuration value or argument that is out of range. Python: ConfigError (a ValueError).
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A call whose arguments the recorded graphs and eager cannot serve. Python: InputError (a ValueError).
class InputError : public Error {
 public:
  using Error::Error;
};

/// A method used in the wrong order (infer before build, build twice). Python: StateError.
class StateError : public Error {
 public:
  using Error::Error;
};

/// A capture that failed; everything it touched has been restored. Python: CaptureError.
class CaptureError : public Error {
 public:
  using Error::Error;
};

/// The pool limit is too small, or the device is out of memory. Python: OutOfMemoryError.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

/// Work that failed on the device after it was submitted, raised at the next synchronisation. Python: DeviceError.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace xpugraph
