// DASH_INLINED, behind a lambda's parameters: it is never called, always part of its caller.
// Correctness and tuning: a lambda that is long or used in several places may else become a
// function. ptxas serialises the products in a kernel with such calls (C7510), and the registers
// around them go through local memory.
#pragma once

#define DASH_INLINED __attribute__((always_inline))
