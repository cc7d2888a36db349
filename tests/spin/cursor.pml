/* cursor.pml - settling, the consumer's A/B record, the ack window, cursor slots, reclaim.
 *
 * step here                        in C (mpqueue/native)
 * walk                             step_frame (reserve.c): passes what is acked, else hands out
 * settle                           mpq_settle: the window's word, by tag; follow: the floor (ack.c)
 * inactive half, selector          mpq_consumer_write (control.c): the one commit
 * word, complement                 mpq_settle_commit, after the flip
 * take over                        take_over (consumer.c): repeats the last word's store
 * snapshot, write, datasync        write_slot (cursor.c); slots alternate
 * reclaim                          reclaim_inside (reclaim.c): below the floor of both slots
 * power cut                        mpq_rebuild: the newest valid slot; both are written again
 *
 * Seqs 0..SEQS-1 lie there from the beginning; the window has WORDS words of PER bits, so that it
 * is passed one and a half times. The helper thread's steps fall between settles only: the snapshot
 * is taken under the mutex that they hold. POWER: one power cut; a slot that no datasync covered is
 * then torn or whole, as it likes.
 *
 * Holds (assertions): what was not settled is never taken for settled, in any lap; what a settle
 * has returned for is not handed out again after a death, nor after a power cut when a cursor write
 * that began later has returned; the count of the settled is exact at each flip; the floor never
 * goes back; what a restart may need was not reclaimed. The end is reached (no invalid end state).
 *
 * BREAK_UNTAGGED       bits without a tag
 * BREAK_FLOOR_HANDOUT  the floor passes what was handed out: cursor before data
 * BREAK_WORD_FIRST     the word is stored before the flip
 * BREAK_NO_REPEAT      a new consumer does not repeat the last word's store
 * BREAK_WINDOW_BY_SEQ  handed out while seq < floor + window, whatever word that is in
 * BREAK_ONE_SLOT       (POWER) slots do not alternate
 * BREAK_SLOT_RESTART   (POWER) a new consumer begins with slot 0
 * BREAK_RECLAIM_NEWEST (POWER) what the newest slot has passed is reclaimed, the older may not have
 * BREAK_NO_OPEN_SYNC   (POWER) a new consumer writes over a slot while the other is not synced */
#define MORTALS 1
#define WORDS 2
#define PER 2
#ifndef SEQS
#define SEQS 6
#endif
#include "mortal.pml"

#define BIT(q) (1 << (q))
#define AT(q) (((q) / PER) % WORDS)
#define TAG(q) ((q) / PER)
#ifdef BREAK_UNTAGGED
#define SAME(v, q) true
#else
#define SAME(v, q) ((v) >> 2 == TAG(q))
#endif
#define ACKED(q) (word[AT(q)] == twin[AT(q)] && SAME(word[AT(q)], q) && \
                  (word[AT(q)] & (1 << ((q) % PER))))
#ifdef BREAK_WINDOW_BY_SEQ
#define INSIDE(q) ((q) < floors[selector & 1] + WORDS * PER)
#else
#define INSIDE(q) ((q) / PER < floors[selector & 1] / PER + WORDS)
#endif

/* control */
byte selector = 0, floors[2], counts[2], places[2], values[2];
byte word[WORDS], twin[WORDS]; /* twin: the complement */
/* the cursor file */
byte slot_floor[2], slot_word0[2], slot_word1[2], slot_number[2];
bool slot_whole[2] = true, slot_synced[2] = true;
byte reclaimed = 0;
bool cut = false, ended = false;
/* what the world knows: bits of seqs */
byte settled = 0, covered = 0, writing = 0;

inline settle(q) {
  atomic {
    value = word[AT(q)];
    if
    :: value == twin[AT(q)] && SAME(value, q) -> value = value | (1 << (q % PER))
    :: else -> value = TAG(q) << 2 | (1 << (q % PER))
    fi;
    out = out & ~BIT(q);
    half = 1 - (selector & 1);
    floors[half] = 0;
#ifndef BREAK_FLOOR_HANDOUT
    do
    :: floors[half] < at && !(out & BIT(floors[half])) -> floors[half] = floors[half] + 1
    :: else -> break
    od;
#else
    floors[half] = at;
#endif
    places[half] = AT(q); values[half] = value;
    counts[half] = counts[1 - half] + 1
  };
#ifdef BREAK_WORD_FIRST
  word[AT(q)] = value;
  twin[AT(q)] = value;
#endif
  atomic {
    assert(floors[half] >= floors[1 - half]);
    selector = 1 - selector; settled = settled | BIT(q)
  };
#ifndef BREAK_WORD_FIRST
  word[AT(q)] = value;
  twin[AT(q)] = value;
#endif
  atomic { value = 0; half = 0 }
}

active proctype Consumer() MORTAL {
  byte at, out, value, half, i, stage, into, next, kept[2];
  do
  :: ended -> break
  :: else ->
     {
#ifndef BREAK_NO_REPEAT
       word[places[selector & 1]] = values[selector & 1];
       twin[places[selector & 1]] = values[selector & 1];
#endif
       atomic {
         at = floors[selector & 1];
#ifndef BREAK_NO_OPEN_SYNC
         slot_synced[0] = true; slot_synced[1] = true;
#endif
         kept[0] = slot_floor[0]; kept[1] = slot_floor[1];
#ifdef BREAK_SLOT_RESTART
         next = 0
#else
         next = (slot_whole[1] && (!slot_whole[0] || slot_number[1] > slot_number[0]) -> 0 : 1)
#endif
       };
       do
       :: atomic { at < SEQS && INSIDE(at) && ACKED(at) -> assert(settled & BIT(at)); at++ }
       :: atomic { at < SEQS && INSIDE(at) && !ACKED(at) ->
            assert(!(settled & BIT(at))); out = out | BIT(at); at++ }
       :: atomic { out != 0 ->
            i = 0;
            do
            :: out & BIT(i) -> break
            :: (out >> (i + 1)) != 0 -> i++
            od
          };
          settle(i);
          i = 0
       :: atomic { out == 0 && floors[selector & 1] < at -> /* passed without a settle */
            half = 1 - (selector & 1);
            floors[half] = at; counts[half] = counts[1 - half];
            places[half] = places[1 - half]; values[half] = values[1 - half] };
          atomic { selector = 1 - selector; half = 0 }
#ifdef POWER
       :: atomic { stage == 0 && !cut && (settled & ~covered) != 0 -> /* the snapshot */
            writing = settled;
#ifdef BREAK_ONE_SLOT
            next = 0;
#endif
            slot_whole[next] = false; slot_synced[next] = false; stage = 1;
            slot_floor[next] = floors[selector & 1];
            slot_number[next] = slot_number[1 - next] + 1;
            slot_word0[next] = (word[0] == twin[0] -> word[0] : 0);
            slot_word1[next] = (word[1] == twin[1] -> word[1] : 0)
#ifdef BREAK_RECLAIM_NEWEST
            ; reclaimed = slot_floor[next]
#endif
          }
       :: atomic { stage == 1 -> slot_whole[next] = true; stage = 2 }
       :: atomic { stage == 2 -> /* datasync */
            slot_synced[0] = true; slot_synced[1] = true; covered = covered | writing;
            kept[next] = slot_floor[next]; next = 1 - next; stage = 0; writing = 0;
            reclaimed = (kept[0] < kept[1] -> kept[0] : kept[1]) }
#endif
       :: at == SEQS && out == 0 && floors[selector & 1] == SEQS && stage == 0 -> break
       od;
       atomic { assert(cut || counts[selector & 1] == SEQS); ended = true }
     } unless { KILLED };
     if
     :: ended -> break
     :: else ->
        atomic { BURIED; at = 0; out = 0; value = 0; half = 0; i = 0; stage = 0; into = 0;
          next = 0; kept[0] = 0; kept[1] = 0; writing = 0 }
     fi
  od;
  atomic {
    assert(settled == (1 << SEQS) - 1);
    GONE
  }
}

#ifdef POWER
/* With the machine the consumer dies; what a rebuild finds is what the next one begins with. */
active proctype Power() provided (doomed == NOBODY) {
  byte i;
  if
  :: atomic { !ended -> cut = true;
       do
       :: i < 2 ->
          if
          :: !slot_synced[i] -> slot_whole[i] = false
          :: true
          fi;
          slot_synced[i] = true; i++
       :: else -> break
       od;
       i = (slot_whole[1] && (!slot_whole[0] || slot_number[1] > slot_number[0]) -> 1 : 0);
       assert(slot_whole[i] && slot_floor[i] >= reclaimed);
       word[0] = slot_word0[i]; twin[0] = word[0]; word[1] = slot_word1[i]; twin[1] = word[1];
       selector = 0; floors[0] = slot_floor[i]; places[0] = 0; values[0] = word[0]; counts[0] = 0;
       settled = (1 << slot_floor[i]) - 1;
       i = 0;
       do
       :: i < SEQS ->
          if
          :: ACKED(i) && i >= floors[0] -> settled = settled | BIT(i)
          :: else
          fi;
          i++
       :: else -> break
       od;
       assert((covered & ~settled) == 0);
       i = 0; doomed = 1 }
  :: true
  fi
}
#endif
