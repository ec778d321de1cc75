/* SPDX-License-Identifier: MIT */
/* For Lua: the CPU time of the calling thread, ms. os.clock() counts all threads of slurmctld together. */
#include <time.h>

typedef struct lua_State lua_State;
extern void lua_pushnumber(lua_State *L, double number);
int thread_ms(lua_State *L);

int thread_ms(lua_State *L) {
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    lua_pushnumber(L, (double) now.tv_sec * 1e3 + (double) now.tv_nsec / 1e6);
    return 1;
}
