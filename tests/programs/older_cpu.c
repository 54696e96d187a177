// SPDX-License-Identifier: Apache-2.0
// Answer `cpuid` as an older CPU does. Loaded into a process whose copy of ONNX Runtime has an int3
// in the place of each cpuid (see older_cpu.py). The environment variable OLDER_CPU selects the CPU:
// avx2 (the default), avx512 (AVX-512 without VNNI) or sse4 (neither AVX nor AVX2 kernels).
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define BIT(n) (1u << (n))

// Features of leaf 7, subleaf 0 (Intel SDM, volume 2, CPUID).
enum {
  EBX_AVX2 = BIT(5),
  EBX_AVX512 = BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31),
  ECX_AVX512_WITHOUT_VNNI = BIT(1) | BIT(6) | BIT(12) | BIT(14),
  ECX_VNNI = BIT(11),
  EDX_AVX512 = BIT(2) | BIT(3) | BIT(8) | BIT(23),
  EDX_AMX = BIT(22) | BIT(24) | BIT(25),
};
// Subleaf 1: AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA; all of EDX (AVX-VNNI-INT8 and later).
enum { EAX_LATER = BIT(4) | BIT(5) | BIT(21) | BIT(23) };

static int keep_avx512, hide_avx2;

static void answer(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info;
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  unsigned leaf = registers[REG_RAX], subleaf = registers[REG_RCX], a, b, c, d;
  __cpuid_count(leaf, subleaf, a, b, c, d);
  if (leaf == 7 && subleaf == 0) {
    c &= ~(unsigned)ECX_VNNI;
    d &= ~(unsigned)EDX_AMX;
    if (!keep_avx512) {
      b &= ~(unsigned)EBX_AVX512;
      c &= ~(unsigned)ECX_AVX512_WITHOUT_VNNI;
      d &= ~(unsigned)EDX_AVX512;
    }
    if (hide_avx2) b &= ~(unsigned)EBX_AVX2;
  } else if (leaf == 7 && subleaf == 1) {
    a &= ~(unsigned)EAX_LATER;
    d = 0;
  }
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
}

__attribute__((constructor)) static void install(void) {
  const char *cpu = getenv("OLDER_CPU");
  keep_avx512 = cpu && !strcmp(cpu, "avx512");
  hide_avx2 = cpu && !strcmp(cpu, "sse4");
  struct sigaction action = {0};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(SIGTRAP, &action, NULL);
}
