/* mortal.pml - processes that may be killed before any of their steps.
 *
 * Killer is process 0; the mortal ones follow, 1..MORTALS. Killer names a victim in `doomed`; the
 * next step of all is the victim's death, which its `unless` branch describes. A process marks
 * itself `gone` when it ends. At most DEATHS are killed; Killer may also retire early, so that a
 * standstill that only another death would end is seen as one (an invalid end state). */
#define NOBODY 255
#ifndef DEATHS
#define DEATHS 1
#endif
byte doomed = NOBODY;
byte deaths = 0;
byte gone = 0; /* one bit a process */

#define MORTAL provided (doomed == NOBODY || doomed == _pid)
#define KILLED doomed == _pid
#define BURIED doomed = NOBODY
#define GONE \
  atomic { \
    gone = gone | (1 << _pid); \
    if \
    :: doomed == _pid -> doomed = NOBODY \
    :: else \
    fi \
  }
#define IS_GONE(p) (gone & (1 << (p)))

active proctype Killer() provided (doomed == NOBODY) {
  byte victim;
  do
  :: atomic { deaths < DEATHS ->
       deaths++; victim = 1;
       do
       :: victim <= MORTALS && !IS_GONE(victim) -> doomed = victim; break
       :: victim < MORTALS -> victim++
       :: victim >= MORTALS -> break
       od;
       victim = 0
     }
  :: break
  od
}
