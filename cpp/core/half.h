// Conversions between float and the 16-bit types, rounding to nearest even.
#pragma once

#include <cstdint>

namespace fuser_direct {

// IEEE binary16 and bfloat16 travel as their bits.
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);

}  // namespace fuser_direct
