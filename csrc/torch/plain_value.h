// SPDX-License-Identifier: MIT
/// @file Comparison of plain Python values. Throws nothing. Threads: needs the GIL.
#pragma once

#include <Python.h>

#include <cstring>

namespace xpugraph {

/// Same type and same value; floats by their bits, since -0.0 is not 0.0 to a division and NaN is NaN. A comparison that
/// raises is a "no".
inline bool same_value(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) {
    const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

}  // namespace xpugraph
