// SPDX-License-Identifier: Apache-2.0
// The vector table of a Cortex-M with memory at 0, as emulated by qemu: stack pointer and entry.
extern void _start(void);

__attribute__((section(".vectors"), used)) static const void* const vectors[] = {
    (void*)0x00400000, (void*)_start};
