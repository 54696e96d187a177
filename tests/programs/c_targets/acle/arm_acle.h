/* SPDX-License-Identifier: Apache-2.0
 *
 * The SIMD instructions of 32-bit ARM cores that generated code has, in portable C: hosts with
 * sanitizers run the same code as a Cortex-M4. Overflows of sums are errors here.
 */
#ifndef ARM_ACLE_H
#define ARM_ACLE_H

#include <stdint.h>

typedef int32_t int8x4_t, int16x2_t;
typedef uint32_t uint8x4_t, uint16x2_t;

static inline int32_t get_half(int16x2_t pair, int half)
{
    return (int16_t)(uint16_t)((uint32_t)pair >> 16 * half);
}

static inline int16x2_t join_halves(int32_t low, int32_t high)
{
    return (int16x2_t)((uint32_t)(uint16_t)low | (uint32_t)(uint16_t)high << 16);
}

static inline int32_t __smlabb(int32_t a, int32_t b, int32_t sum)
{
    return sum + get_half(a, 0) * get_half(b, 0);
}

static inline int32_t __smlatt(int32_t a, int32_t b, int32_t sum)
{
    return sum + get_half(a, 1) * get_half(b, 1);
}

static inline int32_t __smlad(int16x2_t a, int16x2_t b, int32_t sum)
{
    return __smlatt(a, b, __smlabb(a, b, sum));
}

static inline int16x2_t __sxtb16(int8x4_t four)
{
    return join_halves((int8_t)(uint8_t)four, (int8_t)(uint8_t)((uint32_t)four >> 16));
}

static inline uint16x2_t __uxtb16(uint8x4_t four)
{
    return four & 0x00FF00FFu;
}

static inline int16x2_t __sadd16(int16x2_t a, int16x2_t b)
{
    return join_halves(get_half(a, 0) + get_half(b, 0), get_half(a, 1) + get_half(b, 1));
}

#endif
