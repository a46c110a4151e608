/* A library that takes as many seconds to load as FAKE_SLOW_S says, with the loader's lock held. */
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void loaded(void) {
    const char *seconds = getenv("FAKE_SLOW_S");
    sleep(seconds ? (unsigned)atoi(seconds) : 0);
}
