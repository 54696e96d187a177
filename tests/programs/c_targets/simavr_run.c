// SPDX-License-Identifier: Apache-2.0
// simavr_run PROGRAM.elf: run a program for an ATmega328P, and print its cycles.
//
// It prints characters that are written to GPIOR0, counts cycles while GPIOR1 is 1, and ends when
// GPIOR2 is written.
#include <simavr/sim_avr.h>
#include <simavr/sim_elf.h>
#include <simavr/sim_io.h>
#include <stdio.h>

enum { GPIOR0 = 0x3e, GPIOR1 = 0x4a, GPIOR2 = 0x4b };

static avr_cycle_count_t started, cycles;
static int done;

static void on_write(avr_t* avr, avr_io_addr_t address, uint8_t value, void* unused) {
  (void)unused;
  avr->data[address] = value;
  if (address == GPIOR0) {
    putchar(value);
  } else if (address == GPIOR2) {
    done = 1;
  } else if (value) {
    started = avr->cycle;
  } else {
    cycles += avr->cycle - started;
  }
}

int main(int count, char** arguments) {
  elf_firmware_t firmware = {0};
  avr_t* avr = avr_make_mcu_by_name("atmega328p");
  if (count != 2 || !avr || elf_read_firmware(arguments[1], &firmware)) {
    fprintf(stderr, "usage: simavr_run PROGRAM.elf\n");
    return 2;
  }
  avr_init(avr);
  avr_load_firmware(avr, &firmware);
  avr_register_io_write(avr, GPIOR0, on_write, 0);
  avr_register_io_write(avr, GPIOR1, on_write, 0);
  avr_register_io_write(avr, GPIOR2, on_write, 0);
  while (!done) {
    int state = avr_run(avr);
    if (state == cpu_Done || state == cpu_Crashed) {
      printf("fault\n");
      return 1;
    }
  }
  printf("cycles %llu\n", (unsigned long long)cycles);
  return 0;
}
