/* claim.pml - claim, write, publish; the gap of a dead claimant; the A/B record of the tail.
 *
 * step here                        in C (mpqueue/native)
 * take the lock                    lock.c; one step here, lock.pml proves it
 * read the record                  mpq_claim: mpq_tail_read under the lock
 * headers beyond the tail          write_headers (claim.c), mpq_frame_header_write
 * words of the inactive half       mpq_tail_write: store_half, the check word last (control.c)
 * the selector                     mpq_tail_write: the one commit
 * body, then READY                 mpq_claim_write, mpq_claim_publish: last frame to first
 * the reader's copy                mpq_tail_read without the lock: selector, words, selector
 * walk, gap, settle                step_frame, mpq_gap_frames, settle_gap (reserve.c)
 *
 * One producer puts a batch of two, another a single item; either may be reborn. Position and seq
 * are the same number here, so a torn copy is one where they differ.
 *
 * Holds (assertions): a copy of the record is never torn and always agrees with its check, also
 * after a death in the middle of its writing; every frame below the tail has a header; an item is
 * handed out with its whole body; a batch is delivered whole or not at all; what a put returned
 * for is delivered; the claimant alone publishes. Nobody waits for ever (invalid end state).
 *
 * BREAK_IN_PLACE       the words are written into the active half
 * BREAK_SELECT_FIRST   the selector is stored before the headers
 * BREAK_PUBLISH_FIRST  READY before the body
 * BREAK_FIRST_TO_LAST  a batch is published first to last
 * BREAK_GAP_ALIVE      a claim that was waited for long enough becomes a gap
 * BREAK_GAP_BLIND      ... or one whose claimant published it and ended after the walk's look
 * BREAK_GAP_ORDER      gaps first to last, and not looked after again
 * BREAK_NO_RECHECK     the reader does not look at the selector again */
#ifndef MORTALS
#define MORTALS 3 /* 2: the consumer lives on; 1: so does the second producer */
#endif
#define PRODUCERS 2
#define CONSUMER 3
#ifndef INCARNATIONS
#define INCARNATIONS 3
#endif
#define FRAMES 8
#include "mortal.pml"

#define FREE 0
#define CLAIMED 1
#define READY 2
#define GAP 3
#define CODE(s) ((s) & 3)
#define BY(s) ((s) >> 2)
#define ONLY 0
#define FIRST 1
#define LAST 2

byte lock = 0;
byte last = 0;
bool alive[INCARNATIONS + 1];
byte selector = 0;
byte position[2], seq[2], check[2];
byte state[FRAMES], role[FRAMES], header[FRAMES], body[FRAMES];
byte floor = 0; /* the consumer's record: what it settled */
byte returned = 0, delivered = 0; /* one bit a frame */
bool consumed = false;

active [PRODUCERS] proctype Producer() MORTAL {
  byte me, at, half, count, i;
  bool over;
  do
  :: over -> break
  :: else ->
     {
       atomic {
         if
         :: last < INCARNATIONS -> last++; me = last; alive[me] = true
         :: else -> goto out
         fi;
         count = (_pid == 1 -> 2 : 1)
       };
       atomic { lock == 0 || !alive[lock] -> lock = me };
       atomic {
         half = selector & 1; at = position[half];
         assert(position[half] == seq[half] && check[half] == seq[half]);
#ifndef BREAK_IN_PLACE
         half = 1 - half
#endif
       };
#ifdef BREAK_SELECT_FIRST
       position[half] = at + count; seq[half] = at + count; check[half] = at + count;
       selector++;
#endif
       do
       :: i < count ->
          atomic { header[at + i] = at + i + 1;
            role[at + i] = (count == 1 -> ONLY : (i == 0 -> FIRST : LAST)) };
          state[at + i] = me << 2 | CLAIMED;
          i++
       :: else -> break
       od;
#ifndef BREAK_SELECT_FIRST
       position[half] = at + count;
       seq[half] = at + count;
       check[half] = at + count;
#ifndef BREAK_IN_PLACE
       selector++;
#endif
#endif
       lock = 0;
#ifdef BREAK_PUBLISH_FIRST
       i = count;
       do
       :: i > 0 -> i--; state[at + i] = me << 2 | READY
       :: else -> break
       od;
#endif
       i = 0;
       do
       :: i < count -> body[at + i] = me; i++
       :: else -> break
       od;
#ifndef BREAK_PUBLISH_FIRST
       do
       :: i > 0 ->
          i--;
#ifdef BREAK_FIRST_TO_LAST
#define WHICH (at + count - 1 - i)
#else
#define WHICH (at + i)
#endif
          atomic { assert(state[WHICH] == (me << 2 | CLAIMED)); state[WHICH] = me << 2 | READY }
       :: else -> break
       od;
#endif
       atomic {
         returned = returned | (1 << at);
         if
         :: count == 2 -> returned = returned | (2 << at)
         :: else
         fi;
         at = 0; half = 0; i = 0
       };
       alive[me] = false;
out:   over = true
     } unless { KILLED };
     if
     :: over -> break
     :: else ->
        atomic { BURIED; at = 0; half = 0; count = 0; i = 0 };
        atomic { alive[me] = false; me = 0 }
     fi
  od;
  GONE
}

inline gap(n) {
  atomic {
    if
    :: CODE(state[n]) != GAP -> state[n] = BY(state[n]) << 2 | GAP
    :: else
    fi
  }
}

active proctype Consumer() MORTAL {
  byte at, pos, num, sum, sel, now;
  do
  :: consumed -> break
  :: else ->
     {
       at = floor;
       do
       :: atomic { sel = selector };
          pos = position[sel & 1];
          num = seq[sel & 1];
          sum = check[sel & 1];
          if
#ifdef BREAK_NO_RECHECK
          :: true ->
#else
          :: selector != sel
          :: selector == sel ->
#endif
             assert(pos == num && num == sum);
             if
             :: at < pos ->
                atomic { now = state[at]; assert(CODE(now) != FREE && header[at] == at + 1) };
                if
                :: CODE(now) == READY ->
                   atomic { assert(body[at] == BY(now)); delivered = delivered | (1 << at) };
                   at++; floor = at
                :: CODE(now) == CLAIMED ->
                   if
                   :: state[at] != now
#ifdef BREAK_GAP_ALIVE
                   :: true ->
#else
                   :: !alive[BY(now)] ->
#endif
                      if
#ifndef BREAK_GAP_BLIND
                      :: CODE(state[at]) == READY -> goto again
#endif
                      :: else
                      fi;
#ifdef BREAK_GAP_ORDER
                      gap(at);
#endif
                      if
                      :: role[at] == FIRST -> gap(at + 1)
                      :: else
                      fi;
#ifndef BREAK_GAP_ORDER
                      gap(at);
#endif
                      at++; floor = at
                   fi
                :: CODE(now) == GAP ->
#ifndef BREAK_GAP_ORDER
                   if
                   :: role[at] == FIRST -> gap(at + 1)
                   :: else
                   fi;
#endif
                   at++; floor = at
                fi
             :: at >= pos && (gone & 6) == 6 && selector == sel -> break
             :: else -> selector != sel || (gone & 6) == 6
             fi
          fi;
again:    atomic { pos = 0; num = 0; sum = 0; sel = 0; now = 0 }
       od;
       consumed = true
     } unless { KILLED };
     if
     :: consumed -> break
     :: else -> atomic { BURIED; at = 0; pos = 0; num = 0; sum = 0; sel = 0; now = 0 }
     fi
  od;
  atomic {
    pos = 0;
    do
    :: pos < at ->
       assert(!(returned & (1 << pos)) || (delivered & (1 << pos)));
       assert(role[pos] != FIRST || ((delivered >> pos) & 1) == ((delivered >> (pos + 1)) & 1));
       pos++
    :: else -> break
    od
  };
  GONE
}
